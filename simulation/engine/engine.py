"""A simulated engine as front ends in its own process use it.

    engine = SimulatedEngine(WorkerSpec())
    async for token in engine.generate(SimulatedRequest(request_id="1", token_ids=prompt, num_output_tokens=10)):
        ...

Several of them hand prompts over: `decode.generate(request, lambda num_cached: prefill.prefill(request))`.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.simulation.engine.cache_feed import CacheFeed
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.counters import EngineCounters, EngineLoad
from baton.simulation.engine.request import OpenPrefill, PrefilledChunk, SimulatedRequest, SimulatedToken
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import Tokens
from baton.simulation.workers.fills import Fills
from baton.simulation.workers.handover import Handover


@dataclass(slots=True, eq=False)
class _Stream:
    """One request's news, None once it is aborted; a step adds one at most, so they are bounded by the output."""

    request: Request
    open_prefill: OpenPrefill | None = None
    tokens: "asyncio.Queue[SimulatedToken | None]" = field(default_factory=asyncio.Queue)
    chunks: "asyncio.Queue[PrefilledChunk | None]" = field(default_factory=asyncio.Queue)
    fill: "asyncio.Task[None] | None" = None


class SimulatedEngine:
    """Owns an engine core and the streams of its requests; to be used on one event loop."""

    def __init__(self, spec: WorkerSpec, time_scale: float = 1.0) -> None:
        """Each second of the spec takes `time_scale` seconds. Raises ValueError for a spec that cannot be."""
        self.core = EngineCore(spec, LoopClock(), Tokens(spec), time_scale)
        self._fills = Fills(self.core)
        self._streams: dict[RequestId, _Stream] = {}
        self.core.listen(self._on_step)

    @property
    def spec(self) -> WorkerSpec:
        """What was asked for, in real seconds."""
        return self.core.spec

    @property
    def counters(self) -> EngineCounters:
        """What was done since the start."""
        return self.core.counters

    @property
    def cache_feed(self) -> CacheFeed:
        """What comes to and goes from the prefix cache."""
        return self.core.cache_feed

    def load(self) -> EngineLoad:
        """What there is to do now."""
        return self.core.load()

    async def generate(
        self, request: SimulatedRequest, prefill: OpenPrefill | None = None
    ) -> AsyncGenerator[SimulatedToken, None]:
        """The request's tokens as they come; closing the generator aborts it.

        With `prefill` its prompt is computed elsewhere: called once there are blocks, with the number of tokens that
        are cached here, it gives the chunks, whose blocks then come over this engine's link. What does not come is
        computed here. Raises InvalidRequest or QueueFull.
        """
        stream = _Stream(request.to_engine(receives_kv=prefill is not None), prefill)
        self._add(stream)
        try:
            while (token := await stream.tokens.get()) is not None:
                yield token
                if token.is_last:
                    return
        finally:
            self._end(stream)

    async def prefill(self, request: SimulatedRequest) -> AsyncGenerator[PrefilledChunk, None]:
        """Computes a prompt for another engine: a chunk a step, the last one with the next token.

        Its blocks stay held until the generator ends or is closed. Raises InvalidRequest or QueueFull.
        """
        stream = _Stream(request.to_prefill())
        self._add(stream)
        try:
            while (chunk := await stream.chunks.get()) is not None:
                yield chunk
                if chunk.first_token is not None:
                    return
        finally:
            self._end(stream)

    def abort(self, request_id: str) -> None:
        """Ends a request, and its generator."""
        stream = self._streams.get(RequestId(request_id))
        if stream is not None:
            self._end(stream)
            stream.tokens.put_nowait(None)
            stream.chunks.put_nowait(None)

    async def close(self) -> None:
        """Ends every request's fill, and steps no more."""
        await self._fills.close()
        self.core.close()

    def _add(self, stream: _Stream) -> None:
        self.core.add(stream.request)
        self._streams[stream.request.request_id] = stream

    def _end(self, stream: _Stream) -> None:
        if stream.fill is not None:
            stream.fill.cancel()
        self.core.abort(stream.request.request_id)
        self._streams.pop(stream.request.request_id, None)

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            request, sampled = stream.request, output.sampled
            if request.keep_blocks:
                token_id = sampled.token_id if sampled is not None else None
                stream.chunks.put_nowait(
                    PrefilledChunk(output.num_computed_tokens, request.num_cached_tokens, token_id)
                )
            elif sampled is not None:
                self._say(stream, sampled.token_id, is_last=output.finish_reason is not None)
        for request in step.receiving:
            stream = self._streams.get(request.request_id)
            if stream is None:
                self._fills.refuse(request)
            else:
                self._begin_handover(stream)

    def _begin_handover(self, stream: _Stream) -> None:
        request = stream.request
        assert stream.open_prefill is not None

        def on_first_token(chunk: PrefilledChunk) -> None:
            assert chunk.first_token is not None
            is_last = self.core.finish_rule.reason(request, chunk.first_token) is not None
            if is_last:
                self.core.abort(request.request_id)  # it needs no KV
            self._say(stream, chunk.first_token, is_last)

        handover = Handover(
            request,
            self.spec.block_size,
            self.core.link,
            stream.open_prefill,
            on_first_token,
            request.num_computed_tokens,
        )
        stream.fill = self._fills.start(request, handover)

    def _say(self, stream: _Stream, token_id: int, is_last: bool) -> None:
        stream.tokens.put_nowait(SimulatedToken(token_id, is_last, stream.request.num_cached_tokens))

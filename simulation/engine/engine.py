"""A simulated engine for front ends in its own process.

    engine = SimulatedEngine(WorkerSpec())
    async for token in engine.generate(SimulatedRequest(request_id="1", token_ids=prompt, num_output_tokens=10)):
        ...

Engines hand prompts over to each other: `decode.generate(request, lambda num_cached: prefill.prefill(request))`.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from baton.engine.outputs import EngineStats, RequestOutput, StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.scheduling.schedule import Received
from baton.simulation.engine.cache_feed import CacheFeed
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.counters import EngineCounters
from baton.simulation.engine.handover import Handover, Handovers
from baton.simulation.engine.request import OpenPrefill, PrefilledChunk, SimulatedRequest, SimulatedToken
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import Tokens


@dataclass(slots=True, eq=False)
class _Stream:
    """The outputs of one request, and None after its abort; bounded, as a step adds at most one."""

    request: Request
    open_prefill: OpenPrefill | None = None
    tokens: "asyncio.Queue[SimulatedToken | None]" = field(default_factory=asyncio.Queue)
    chunks: "asyncio.Queue[PrefilledChunk | None]" = field(default_factory=asyncio.Queue)
    handover: "asyncio.Task[None] | None" = None

    def add_token(self, token_id: int, is_last: bool) -> None:
        """Queue a token of the output."""
        self.tokens.put_nowait(SimulatedToken(token_id, is_last, self.request.num_cached_tokens))

    def add_output(self, output: RequestOutput) -> None:
        """Queue the output of a step."""
        token_id = output.sampled.token_id if output.sampled is not None else None
        if self.request.keep_blocks:
            chunk = PrefilledChunk(output.num_computed_tokens, self.request.num_cached_tokens, token_id)
            self.chunks.put_nowait(chunk)
        elif token_id is not None:
            self.add_token(token_id, is_last=output.finish_reason is not None)


class SimulatedEngine:
    """An engine core and the streams of its requests; for use on one event loop."""

    def __init__(self, spec: WorkerSpec, time_scale: float = 1.0) -> None:
        """Create an engine for which each second of the spec takes `time_scale` seconds.

        Raises ValueError for an impossible spec.
        """
        self.core = EngineCore(spec, LoopClock(), Tokens(spec), time_scale)
        self._handovers = Handovers(self.core)
        self._streams: dict[RequestId, _Stream] = {}
        self.core.listen(self._on_step)

    @property
    def spec(self) -> WorkerSpec:
        """The spec with all times in real seconds."""
        return self.core.spec

    @property
    def counters(self) -> EngineCounters:
        """Counters since the start."""
        return self.core.counters

    @property
    def cache_feed(self) -> CacheFeed:
        """Feed of the prefix cache's changes."""
        return self.core.cache_feed

    def load(self) -> EngineStats:
        """Return the current load and the counters since the start."""
        return self.core.load()

    async def generate(
        self, request: SimulatedRequest, prefill: OpenPrefill | None = None
    ) -> AsyncGenerator[SimulatedToken, None]:
        """Yield the request's tokens; closing the generator aborts it.

        With `prefill`, another engine computes the prompt. It is called once the request has blocks, with the number of
        tokens that are cached here, and yields the chunks, whose blocks are read over this engine's link. Blocks that
        are not received are computed here. Raises InvalidRequest or QueueFull.
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
        """Compute a prompt for another engine; yield a chunk per step, the last with the first output token.

        The blocks stay held until the generator ends or is closed. Raises InvalidRequest or QueueFull.
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
        """End a request and its generator."""
        stream = self._streams.get(RequestId(request_id))
        if stream is not None:
            self._end(stream)
            stream.tokens.put_nowait(None)
            stream.chunks.put_nowait(None)

    async def close(self) -> None:
        """End every handover and stop stepping."""
        await self._handovers.close()
        self.core.close()

    def _add(self, stream: _Stream) -> None:
        self.core.add(stream.request)
        self._streams[stream.request.request_id] = stream

    def _end(self, stream: _Stream) -> None:
        if stream.handover is not None:
            stream.handover.cancel()
        if self._streams.get(stream.request.request_id) is stream:  # a later request may have its id
            del self._streams[stream.request.request_id]
            self.core.abort(stream.request.request_id)

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            if (stream := self._streams.get(output.request_id)) is not None:
                stream.add_output(output)
        for request in step.receiving:
            if (stream := self._streams.get(request.request_id)) is not None:
                self._begin_handover(stream)
            else:  # aborted in the meantime
                self.core.end_receive(request.request_id, Received(0))

    def _begin_handover(self, stream: _Stream) -> None:
        request = stream.request
        assert stream.open_prefill is not None

        def on_first_token(chunk: PrefilledChunk) -> None:
            assert chunk.first_token is not None
            is_last = self.core.finish_rule.reason(request, chunk.first_token) is not None
            if is_last:
                self.core.abort(request.request_id)  # it needs no KV
            stream.add_token(chunk.first_token, is_last)

        handover = Handover(request, self.spec.block_size, self.core.link, stream.open_prefill, on_first_token)
        stream.handover = self._handovers.start(request, handover)

"""Prompts that other workers ask a simulated worker to compute; see `baton.prefill_worker.service` for their life."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from baton.engine.errors import EngineError
from baton.engine.outputs import RequestOutput, StepOutput
from baton.engine.request import Request, RequestId
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels, Context, check_peer
from baton.rpc.requests import engine_request
from baton.rpc.status import status_of
from baton.simulation.engine.core import EngineCore
from baton.simulation.workers.fills import Fills
from baton.simulation.workers.prefix_pull import PrefixPull
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters

ENGINE_IDS = "prefill/"  # as a real worker's


@dataclass(slots=True, eq=False)
class _Prompt:
    request: Request
    message: worker_pb2.PrefillRequest
    pull: PrefixPull | None = None
    filling: "asyncio.Task[None] | None" = None
    steps: "asyncio.Queue[RequestOutput]" = field(default_factory=asyncio.Queue)  # at most one for each chunk


class SimulatedPrefillService(worker_pb2_grpc.PrefillServicer):
    """Owns the prompts; a call is a lease on its prompt's blocks."""

    def __init__(
        self,
        core: EngineCore,
        channels: Channels,
        counters: WorkerCounters,
        drain: Drain,
        description: worker_pb2.WorkerDescription,
    ) -> None:
        self._core = core
        self._channels = channels
        self._counters = counters
        self._drain = drain
        self._description = description
        self._prompts: dict[RequestId, _Prompt] = {}
        self._uncomputed: set[RequestId] = set()  # of them
        self._fills = Fills(core)
        self._numbers = itertools.count(1)
        core.listen(self._on_step)

    async def Prefill(  # noqa: N802
        self, request: worker_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """Computes a prompt and announces its blocks."""
        await check_peer(context, self._description, request.incarnation, request.fingerprint)
        if self._drain.has_begun:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is draining; ask another")
        request_id = RequestId(f"{ENGINE_IDS}{next(self._numbers)}/{request.request_id}")
        prompt = _Prompt(engine_request(request, request_id), request)
        with self._drain.request():
            self._prompts[prompt.request.request_id] = prompt
            self._uncomputed.add(request_id)
            self._counters.num_prefills = len(self._uncomputed)
            try:
                try:
                    self._core.add(prompt.request)
                finally:
                    self._counters.taken.note(request.router_id, request.number)
                yield worker_pb2.PrefillEvent(accepted=worker_pb2.PrefillAccepted(pools=[self._description.pool]))
                async for event in self._events(prompt):
                    yield event
                await asyncio.Event().wait()  # the lease ends with the call
            except EngineError as error:
                await context.abort(status_of(error).code, str(error))
            finally:
                self._end(prompt)

    async def close(self) -> None:
        """Ends every pull."""
        await self._fills.close()

    async def _events(self, prompt: _Prompt) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """The prompt's events from its first step to its last block."""
        block_size, request = self._core.spec.block_size, prompt.request
        num_announced = prompt.message.num_cached_tokens // block_size
        while True:
            output = await prompt.steps.get()
            sampled, num_ready = output.sampled, output.num_computed_tokens // block_size
            if sampled is not None:
                num_ready = len(request.block_table)
            event = worker_pb2.PrefillEvent()
            if num_ready > num_announced:
                event.blocks.first_index = num_announced
                event.blocks.block_ids.extend(request.block_table[num_announced:num_ready])
                num_announced = num_ready
            if sampled is not None:
                num_pulled = prompt.pull.num_pulled_tokens if prompt.pull is not None else 0
                event.first_token.token_id = sampled.token_id
                event.first_token.num_cached_tokens = request.num_cached_tokens + num_pulled
                event.first_token.num_pulled_tokens = num_pulled
            yield event
            if sampled is not None:
                return

    def _end(self, prompt: _Prompt) -> None:
        if prompt.filling is not None:
            prompt.filling.cancel()
        self._core.abort(prompt.request.request_id)
        self._is_computed(prompt.request.request_id)
        del self._prompts[prompt.request.request_id]

    def _is_computed(self, request_id: RequestId) -> None:
        self._uncomputed.discard(request_id)
        self._counters.num_prefills = len(self._uncomputed)

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            prompt = self._prompts.get(output.request_id)
            if prompt is not None:
                prompt.steps.put_nowait(output)
                if output.sampled is not None:
                    self._is_computed(output.request_id)
        for request in step.receiving:
            if not request.request_id.startswith(ENGINE_IDS):
                continue
            prompt = self._prompts.get(request.request_id)
            if prompt is None:  # its call ended in the meantime
                self._fills.refuse(request)
            else:
                self._begin_pull(prompt)

    def _begin_pull(self, prompt: _Prompt) -> None:
        spec, source = self._core.spec, prompt.message.prefix_source
        fingerprint = self._description.fingerprint
        prompt.pull = PrefixPull(
            prompt.request, spec, self._core.link, self._channels, self._counters, source, fingerprint
        )
        prompt.filling = self._fills.start(prompt.request, prompt.pull)

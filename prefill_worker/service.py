"""The life of a request in a prefill worker.

1. A decode worker calls `Prefill` with the tokens, and how many of them it has the KV of.
2. The engine takes what its prefix cache has. If the call names a worker that has more, that is pulled first.
3. The engine computes the rest in chunks, batched with other prompts. After each chunk the blocks that became full are
   announced with their checksums, while the next chunk computes.
4. With the last chunk the next token is sampled and sent at once; then the last blocks are announced, partial or not.
5. The decode worker reads the blocks and ends the call. Only then are they released; they stay in the prefix cache.

However the call ends, its request is aborted in the engine, which frees whatever it still holds.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator

import grpc

from engine.errors import EngineError
from engine.outputs import StepOutput
from engine.request import Request, RequestId
from engine.scheduler import Received
from prefill_worker.job import PrefillJob, PrefillStep
from prefill_worker.prefix_pull import PrefixPuller
from protos import worker_pb2, worker_pb2_grpc
from rpc.drain import Drain
from rpc.engine_host import EngineHost
from rpc.peers import Context, check_peer
from rpc.pool_description import pool_to_proto
from rpc.status import status_of


class PrefillService(worker_pb2_grpc.PrefillServicer):
    """Owns the prompts that others asked this worker to compute; a call is a lease on its prompt's blocks."""

    def __init__(self, host: EngineHost, drain: Drain, puller: PrefixPuller) -> None:
        self._host = host
        self._drain = drain
        self._puller = puller
        self._jobs: dict[RequestId, PrefillJob] = {}
        self._sources: dict[RequestId, worker_pb2.PeerWorker] = {}
        self._pulls: dict[RequestId, asyncio.Task[None]] = {}
        self._numbers = itertools.count(1)
        host.listen(self._on_step)

    async def Prefill(  # noqa: N802
        self, request: worker_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """Computes a prompt and announces its blocks."""
        await check_peer(context, self._host.pool, request.incarnation, request.fingerprint)
        if self._drain.has_begun:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is draining; ask another")
        request_id = RequestId(f"{next(self._numbers)}/{request.request_id}")
        job = PrefillJob.of(request, request_id)
        with self._drain.request():
            self._jobs[request_id] = job
            self._sources[request_id] = request.prefix_source
            try:
                await self._host.call(lambda engine: engine.add(job.request))
                yield worker_pb2.PrefillEvent(accepted=worker_pb2.PrefillAccepted(pool=pool_to_proto(self._host.pool)))
                async for event in job.events(self._host.pool_tensor, self._host.config.block_size):
                    yield event
                await asyncio.Event().wait()  # the lease ends with the call
            except EngineError as error:
                await context.abort(status_of(error).code, str(error))
            finally:
                self._end(request_id)

    async def close(self) -> None:
        """Returns once no pull is under way."""
        for pull in self._pulls.values():
            pull.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    def _end(self, request_id: RequestId) -> None:
        del self._jobs[request_id], self._sources[request_id]
        self._host.call(lambda engine: engine.abort(request_id))
        if request_id in self._pulls:
            self._pulls[request_id].cancel()

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            if output.request_id in self._jobs:
                self._jobs[output.request_id].steps.put_nowait(PrefillStep(output, step.finished_at_s))
        for request in step.receiving:
            pull = asyncio.create_task(self._pull(request))
            self._pulls[request.request_id] = pull
            pull.add_done_callback(lambda _, request_id=request.request_id: self._pulls.pop(request_id))  # type: ignore[misc]  # mypy cannot infer a lambda with a default

    async def _pull(self, request: Request) -> None:
        """Fills the request's first blocks from another worker's cache, as far as that has them."""
        num_tokens = request.num_computed_tokens
        source = self._sources.get(request.request_id)
        try:
            if source is not None:
                num_tokens = await self._puller.pull(request, source)
        finally:
            job = self._jobs.get(request.request_id)
            if job is not None:
                job.num_pulled_tokens = num_tokens - request.num_computed_tokens
            received = Received(num_tokens)
            await self._host.call(lambda engine: engine.end_receive(request.request_id, received))

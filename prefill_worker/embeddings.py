"""The life of an embedding in a prefill worker.

1. A router calls `Embed` with a few inputs. All of them are queued in the engine, or none.
2. The engine computes each like a prompt, in chunks and in a batch with others, and pools its final hidden states. It
   samples nothing, and the input's blocks are released at once; they stay in the prefix cache.
3. Each embedding is sent when it is known. If there is none for a quarter of a second, an empty event is sent as a
   keep-alive, as long as the engine steps.

However the call ends, its inputs are aborted in the engine, which frees everything that they still hold.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from baton.engine.errors import EngineEnded, EngineError, InvalidRequest
from baton.engine.outputs import RequestOutput, StepOutput
from baton.engine.pooling.config import PoolingParams
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.prefill_worker.service import beats_until
from baton.process.request_scope import enter_request
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context, check_peer, refuse
from baton.rpc.status import status_of
from baton.worker.base import EngineCalls, Host, WorkerIdentity
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters

MAX_INPUTS = 64
ENGINE_IDS = "embed/"  # prefix of this service's request ids in the engine, which other services may share


@dataclass(slots=True, eq=False)
class EmbeddingBatch:
    """Inputs of one call that are not computed yet, and their results."""

    requests: dict[RequestId, tuple[int, Request]]  # index and request of each input without a result
    results: "asyncio.Queue[tuple[int, Request, RequestOutput]]" = field(default_factory=asyncio.Queue)  # one an input

    @classmethod
    def of(cls, message: worker_pb2.EmbedRequest, number: int) -> "EmbeddingBatch":
        """Return the batch of a message. Raises InvalidRequest for a wrong number of inputs."""
        if not 0 < len(message.inputs) <= MAX_INPUTS:
            raise InvalidRequest(f"the call has {len(message.inputs)} inputs, but must have from 1 to {MAX_INPUTS}")
        pooling = PoolingParams(
            dimensions=message.dimensions if message.HasField("dimensions") else None,
            normalizes=message.normalizes if message.HasField("normalizes") else None,
        )
        requests: dict[RequestId, tuple[int, Request]] = {}
        for index, each in enumerate(message.inputs):
            request_id = RequestId(f"{ENGINE_IDS}{number}/{index}/{message.request_id}")
            token_ids = list(each.token_ids)
            request = Request(
                request_id=request_id,
                token_ids=token_ids,
                num_prompt_tokens=len(token_ids),
                sampling=SamplingParams(max_tokens=1),
                cache_salt=message.cache_salt,
                adapter=message.adapter or None,
                adapter_digest=message.adapter_digest,
                priority=message.priority,
                pooling=pooling,
            )
            requests[request_id] = (index, request)
        return cls(requests)

    def add_to(self, engine: EngineCalls) -> None:
        """Queue all inputs, or none. Raises the first one's InvalidRequest or QueueFull."""
        added: list[RequestId] = []
        try:
            for request_id, (_, request) in self.requests.items():
                engine.add(request)
                added.append(request_id)
        except EngineError:
            for request_id in added:
                engine.abort(request_id)
            raise

    def put(self, output: RequestOutput) -> None:
        """Take the last output of an input."""
        index, request = self.requests.pop(output.request_id)
        self.results.put_nowait((index, request, output))

    def close(self) -> None:
        """Have the call end with UNAVAILABLE, after the results that are known."""
        error = EngineEnded("this worker has ended its service; ask another")
        for request_id in list(self.requests):
            self.put(RequestOutput(request_id, 0, finish_reason=FinishReason.ERROR, error=error))


class EmbeddingService(worker_pb2_grpc.EmbeddingsServicer):
    """The Embeddings service."""

    def __init__(self, host: Host, counters: WorkerCounters, drain: Drain) -> None:
        self._host = host
        self._counters = counters
        self._drain = drain
        self._batches: dict[RequestId, EmbeddingBatch] = {}  # by input without a result
        self._numbers = itertools.count(1)
        host.listen(self._on_step)

    async def Embed(  # noqa: N802
        self, request: worker_pb2.EmbedRequest, context: Context
    ) -> AsyncIterator[worker_pb2.EmbedEvent]:
        """Compute the embeddings of a batch of inputs."""
        enter_request(request.request_id)
        host = self._host
        ours = WorkerIdentity(host.identity.incarnation, host.origin.fingerprint)
        await check_peer(context, ours, request.incarnation, request.fingerprint)
        if self._drain.has_begun:
            await refuse(context, "this worker is draining; ask another")
        if host.is_short_of_ranks:
            await refuse(context, "this worker's group is short of ranks; ask another")
        with self._drain.request():  # no await since `has_begun`: a drain that begins now waits for it
            try:
                batch = EmbeddingBatch.of(request, next(self._numbers))
                try:
                    async for event in self._events(request, batch):
                        yield event
                finally:
                    self._end(batch)
            except EngineError as error:
                await context.abort(status_of(error).code, str(error))

    async def _events(
        self, request: worker_pb2.EmbedRequest, batch: EmbeddingBatch
    ) -> AsyncIterator[worker_pb2.EmbedEvent]:
        """Yield the events of a call. Raises the EngineError of an input."""
        num_inputs = len(batch.requests)
        self._batches.update(dict.fromkeys(batch.requests, batch))
        self._count()
        try:
            adding = self._host.call(batch.add_to)
            async for _ in beats_until(adding, self._is_stalled):
                yield worker_pb2.EmbedEvent()
            await adding
        finally:
            self._counters.taken.note(request.router_id, request.number)
        for _ in range(num_inputs):
            getting = asyncio.ensure_future(batch.results.get())
            try:
                async for _ in beats_until(getting, self._is_stalled):
                    yield worker_pb2.EmbedEvent()
                index, computed, output = await getting
            finally:
                getting.cancel()
            if output.error is not None:
                raise output.error
            assert output.embedding is not None
            yield worker_pb2.EmbedEvent(
                embedding=worker_pb2.Embedding(
                    index=index, vector=output.embedding, num_cached_tokens=computed.num_cached_tokens
                )
            )

    def close(self) -> None:
        """End all calls whose inputs are not all computed."""
        for batch in set(self._batches.values()):
            self._end(batch)
            batch.close()

    def _is_stalled(self) -> bool:
        """Whether the engine makes no progress, so that the router should try another worker."""
        return self._host.is_stuck or self._host.is_short_of_ranks

    def _end(self, batch: EmbeddingBatch) -> None:
        """Abort the inputs of a call that have no result."""
        left = list(batch.requests)
        for request_id in left:
            self._batches.pop(request_id, None)
        self._count()
        if left:
            self._host.call(lambda engine: [engine.abort(request_id) for request_id in left])

    def _count(self) -> None:
        self._counters.num_embeddings = len(self._batches)

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            if output.finish_reason is None:
                continue
            batch = self._batches.pop(output.request_id, None)
            if batch is not None:
                batch.put(output)
                self._count()

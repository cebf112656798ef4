"""Dispatch of embeddings: batches of a request's inputs go to prefill workers, and again if a worker is lost.

1. A request's inputs are divided into batches, enough to occupy all workers, each of at most a few engine steps.
2. Each batch goes to the worker that computes it soonest, given its queue and its prefix cache. A worker gets a bounded
   number of batches at a time; clients take turns at it.
3. The worker sends each embedding as soon as it is known. If it is lost, only the inputs without one go to another.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import grpc

from baton.engine.errors import InvalidRequest, QueueFull
from baton.kvtransfer.errors import TransferError
from baton.protos.worker_pb2 import Embedding, EmbedRequest
from baton.protos.worker_pb2_grpc import EmbeddingsStub
from baton.router.adapters.adapter import Adapter
from baton.router.admission.turns import Turns
from baton.router.dispatch.embedding_job import EmbeddingBatch, EmbeddingJob, divided, embed_request
from baton.router.dispatch.progress import FIRST_BACKOFF_S, LAST_BACKOFF_S
from baton.router.dispatch.retries import FailoverLimits, RetryBudget
from baton.router.errors import Draining, NoWorker, WorkerLost
from baton.router.inline_work import InlineWork
from baton.router.metrics.metrics import RouterMetrics
from baton.router.policy.cluster import ClusterSnapshot, RoutedRequest, WorkerSnapshot
from baton.router.policy.cost_model import CostModel
from baton.router.policy.embedding import EmbeddingFamily, choose_embedder, choose_family
from baton.router.request_context import RequestContext
from baton.router.workers.pool import WorkerPool
from baton.rpc.backoff import Backoff
from baton.rpc.peers import is_refusal, next_event
from baton.rpc.status import Internal, Unavailable, error_from_code

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH_INPUTS = 32
BATCH_STEPS = 2  # engine steps that a batch may fill
STEP_TOKENS = 2048  # token budget of a step, for workers that do not report it
BATCHES_PER_WORKER = 2  # into which the inputs of a request are divided at least, so that a worker never waits for one
MAX_REQUEST_BATCHES = 64  # of a request at workers, or waiting for their turn there
WORKER_ROUNDS = 2  # batch sizes of an engine that this router keeps at a worker
NUM_SEQS = 64  # batch size of an engine, for workers that do not report it
REFUSED_S = 0.5  # after a refusal by a worker that drains, until it is asked again if it takes requests
MAX_REFUSALS = 5  # of a batch by one worker that seems to take requests
SILENCE_S = 15.0  # without an event, after which a worker is lost: a keep-alive follows every quarter of a second
FLOAT_BYTES = 4
FIRST_NUMBER = 1 << 62  # first number of an embedding command in load reports; those of completions begin at 1
LOST_CODES = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.FAILED_PRECONDITION}
)  # the last one: it has restarted


class Embedder:
    """Sends inputs to workers that make embeddings, and retries those of lost workers."""

    def __init__(
        self,
        pool: WorkerPool,
        model: CostModel,
        limits: FailoverLimits,
        metrics: RouterMetrics,
    ) -> None:
        self._pool = pool
        self._model = model
        self._limits = limits
        self._metrics = metrics
        self._numbers = itertools.count(FIRST_NUMBER)
        self._budget = RetryBudget()  # for refusals by busy workers only
        self._endings: set[asyncio.Future[None]] = set()  # fails the request if it has an error; one a request
        self._inline = InlineWork()  # on the tokens of batches
        self._inline_turns = Turns()  # one batch polls for time of the event loop, the others wait for their turn
        self._turns: WeakValueDictionary[str, Turns] = WeakValueDictionary()  # by incarnation, while batches use them

    @property
    def is_ready(self) -> bool:
        """Whether a request would be served now."""
        cluster = self._pool.snapshot()
        return any(worker.pooling is not None for worker in cluster.workers)

    @property
    def has_workers(self) -> bool:
        """Whether a request would not fail for lack of a worker. It fails if their model makes no embeddings."""
        try:
            choose_family(self._pool.snapshot())
        except NoWorker:
            return False
        except InvalidRequest:
            pass
        return True

    def family(self, context: RequestContext, adapter: Adapter | None = None) -> EmbeddingFamily:
        """Return the workers for a request. Raises what `choose_family` raises."""
        return choose_family(self._pool.snapshot(), context.hints.prefill_worker, adapter)

    def context_len(self, family: EmbeddingFamily) -> int:
        """Return the maximum tokens of an input."""
        return max((worker.max_model_len for worker in family.workers(self._pool.snapshot())), default=0)

    async def embed(self, job: EmbeddingJob) -> list[bytes]:
        """Return the embeddings of all inputs, each float32, little-endian. Cancelling it cancels them at the workers.

        Raises NoWorker, Draining, QueueFull, or the worker's error.
        """
        results = [b""] * len(job.inputs)
        batches = iter(self._batches(job))

        async def run() -> None:
            for batch in batches:
                await self._run(job, batch, results)

        tasks = [asyncio.create_task(run()) for _ in range(min(len(job.inputs), MAX_REQUEST_BATCHES))]
        computing = asyncio.gather(*tasks)
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._endings.add(ending)
        try:
            await asyncio.wait((computing, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                ending.result()
            await computing
        finally:
            self._endings.discard(ending)
            for task in tasks:
                task.cancel()
            await asyncio.gather(computing, *tasks, return_exceptions=True)
        return results

    def end(self, error: Draining) -> None:
        """Fail every request with the error."""
        for ending in self._endings:
            if not ending.done():
                ending.set_exception(error)

    def _batches(self, job: EmbeddingJob) -> list[EmbeddingBatch]:
        workers = job.family.workers(self._pool.snapshot())
        step_tokens = max((worker.max_num_batched_tokens for worker in workers), default=0) or STEP_TOKENS
        most = -(-len(job.inputs) // (BATCHES_PER_WORKER * max(1, len(workers))))
        places = divided([len(each) for each in job.inputs], min(most, MAX_BATCH_INPUTS), BATCH_STEPS * step_tokens)
        return [EmbeddingBatch(each, job.hashes(each), not index) for index, each in enumerate(places)]

    async def _run(self, job: EmbeddingJob, batch: EmbeddingBatch, results: list[bytes]) -> None:
        """Compute a batch, in as many attempts as needed."""
        self._budget.note_request()
        while batch.left:
            worker, routed = await self._choose(job, batch)
            try:
                await self._attempt(job, batch, worker, routed, results)
            except Draining:
                raise
            except (QueueFull, Unavailable) as error:
                await self._take_failure(batch, worker, error)
                self._metrics.failovers.inc()
                logger.warning("%s is retried: %s", job.request_id, error)

    async def _choose(self, job: EmbeddingJob, batch: EmbeddingBatch) -> tuple[WorkerSnapshot, RoutedRequest]:
        """Return the worker for the next attempt. Retries and batches after the first wait; a new request fails."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self._limits.timeout_s if batch.attempt or not batch.is_first else 0.0)
        while True:
            refusing = {each for each, until_s in batch.refused_until_s.items() if loop.time() < until_s}
            try:
                return await self._paced(job, partial(self._choose_now, job, batch, refusing))
            except NoWorker as error:
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    raise batch.failure or error from error
                await self._pool.wait_change(min(left_s, REFUSED_S) if refusing else left_s)

    def _choose_now(
        self, job: EmbeddingJob, batch: EmbeddingBatch, refusing: set[str]
    ) -> tuple[WorkerSnapshot, RoutedRequest]:
        """Return the worker for the next attempt. Raises NoWorker."""
        cluster = self._pool.snapshot().without(frozenset(refusing | batch.busy | self._still_lost(batch)))
        routed = self._routed(job, batch, cluster)
        longest = max(len(job.inputs[place]) for place in batch.left)
        return choose_embedder(routed, cluster, job.family, longest, self._model, next(self._numbers)), routed

    async def _paced(self, job: EmbeddingJob, work: Callable[[], T]) -> T:
        """Return the result of work on the tokens of one batch, once the event loop has time. Clients take turns."""
        async with self._inline_turns.turn(job.context.fairness_key):
            return await self._inline.run_paced(work)

    def _still_lost(self, batch: EmbeddingBatch) -> set[str]:
        """Return the incarnations that the batch lost and the router has not connected to again since."""
        connections = {incarnation: self._pool.connection(incarnation) for incarnation in batch.lost}
        return {
            incarnation
            for incarnation, connection in connections.items()
            if connection is None or connection.channel in (None, batch.lost[incarnation])
        }

    def _routed(self, job: EmbeddingJob, batch: EmbeddingBatch, cluster: ClusterSnapshot) -> RoutedRequest:
        """Return the batch as one prompt: the sums of its tokens and of what each worker has cached."""
        cached: dict[str, int] = {}
        for place in () if job.family.pooling.needs_all_tokens else batch.left:
            token_ids, hashes = job.inputs[place], batch.hashes[place]
            found = self._pool.cached_tokens(cluster, partial(hashes.extended, token_ids))
            for incarnation, num_tokens in found.in_pool.items():
                cached[incarnation] = cached.get(incarnation, 0) + num_tokens
        return RoutedRequest(sum(len(job.inputs[place]) for place in batch.left), cached, adapter=job.family.adapter)

    async def _attempt(
        self,
        job: EmbeddingJob,
        batch: EmbeddingBatch,
        worker: WorkerSnapshot,
        routed: RoutedRequest,
        results: list[bytes],
    ) -> None:
        """Compute the rest of a batch at a worker. Raises WorkerLost or the worker's error."""
        connection = self._pool.connection(worker.incarnation)
        if connection is None:
            raise WorkerLost(f"worker {worker.worker_id} was lost")
        number, load = next(self._numbers), connection.load
        missing = routed.missing_tokens(worker)
        channel: grpc.aio.Channel | None = None
        load.add(number, missing, -(-missing // worker.block_size), is_prefill=True)
        try:
            turns = self._turns_of(worker)
            async with turns.turn(job.context.fairness_key):
                message = await self._paced(
                    job, partial(embed_request, job, batch, worker, self._pool.router_id, number)
                )
                channel = connection.channel
                if channel is None or self._pool.connection(worker.incarnation) is not connection:
                    raise WorkerLost(f"worker {worker.worker_id} was lost")
                if connection.snapshot() is None:
                    raise Unavailable(f"worker {worker.worker_id}: draining")
                await self._call(channel, message, job, batch, worker, results)
        except WorkerLost:
            batch.lost[worker.incarnation] = channel
            raise
        finally:
            load.remove(number)

    def _turns_of(self, worker: WorkerSnapshot) -> Turns:
        turns = self._turns.get(worker.incarnation)
        if turns is None:
            num_inputs = WORKER_ROUNDS * (worker.max_num_seqs or NUM_SEQS)
            turns = self._turns[worker.incarnation] = Turns(max(1, num_inputs // MAX_BATCH_INPUTS))
        return turns

    async def _call(
        self,
        channel: grpc.aio.Channel,
        message: EmbedRequest,
        job: EmbeddingJob,
        batch: EmbeddingBatch,
        worker: WorkerSnapshot,
        results: list[bytes],
    ) -> None:
        places = list(batch.left)  # by index in the message
        call = EmbeddingsStub(channel).Embed(message)
        try:
            while batch.left:
                event = await next_event(call, f"worker {worker.worker_id}", SILENCE_S)
                if event is None:
                    raise WorkerLost(f"worker {worker.worker_id} ended a call for embeddings early")
                if event.HasField("embedding"):
                    self._take(job, batch, places, event.embedding, worker, results)
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            if is_refusal(error):
                raise Unavailable(f"worker {worker.worker_id}: {details}") from error
            if error.code() in LOST_CODES:
                raise WorkerLost(f"worker {worker.worker_id}: {details}") from error
            raise error_from_code(error.code().value[0], details) from error
        except TransferError as error:  # it is silent, or its channel was closed
            raise WorkerLost(str(error)) from error
        finally:
            call.cancel()

    def _take(
        self,
        job: EmbeddingJob,
        batch: EmbeddingBatch,
        places: Sequence[int],
        embedding: Embedding,
        worker: WorkerSnapshot,
        results: list[bytes],
    ) -> None:
        """Store an embedding. Raises Internal if the worker sent something else."""
        place = places[embedding.index] if embedding.index < len(places) else -1
        if place not in batch.left or len(embedding.vector) != FLOAT_BYTES * job.size:
            raise Internal(f"worker {worker.worker_id} sent an invalid embedding")
        batch.left.remove(place)
        del batch.hashes[place]
        results[place] = embedding.vector
        self._metrics.input_embedded(len(job.inputs[place]), embedding.num_cached_tokens)

    async def _take_failure(
        self, batch: EmbeddingBatch, worker: WorkerSnapshot, error: QueueFull | Unavailable
    ) -> None:
        """Wait until a batch may be retried. Raises the error if it must not be."""
        batch.attempt += 1
        batch.failure = error
        now_s = asyncio.get_running_loop().time()
        if isinstance(error, WorkerLost):
            batch.num_failures += 1
            batch.losses.note(len(batch.left))
            if batch.num_failures > self._limits.attempts:
                raise batch.losses.last_error(error, batch.num_failures) from error
            return
        if isinstance(error, Unavailable):  # it drains
            batch.refusals[worker.incarnation] += 1
            batch.refused_until_s[worker.incarnation] = now_s + REFUSED_S
            if batch.refusals[worker.incarnation] >= MAX_REFUSALS:
                raise error
            return
        batch.refused_s = now_s if batch.refused_s is None else batch.refused_s
        if now_s > batch.refused_s + self._limits.timeout_s:
            raise error
        batch.busy.add(worker.incarnation)
        if not self._budget.take():
            raise error
        if batch.backoff is None:
            batch.backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        await batch.backoff.wait()
        batch.busy.clear()

"""The life of a request in a prefill worker.

1. A decode worker calls `Prefill` with the tokens and the number of them whose KV it already has. Whenever there is no
   other event for a quarter of a second, it gets an empty event as a keep-alive, as long as the engine steps.
2. The engine reuses cached prefix blocks. If the call names a worker with a longer cached prefix, it is pulled first;
   otherwise a longer prefix that a store below the pool has is fetched, if that is faster than computing it.
3. The engine computes the rest in chunks, batched with other prompts. After each chunk, the newly full blocks are
   announced. Their checksums follow while the next chunk computes.
4. The last chunk samples the first output token. It is sent at once, with the last blocks, full or partial.
5. The decode worker reads the blocks and ends the call. Only then are the blocks released; they stay in the prefix
   cache. A worker that ends, or changes its role, ends the calls that are left with UNAVAILABLE.

However the call ends, its request is aborted in the engine, which frees everything that it still holds.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from baton.engine.errors import EngineEnded, EngineError
from baton.engine.kv.groups import KVGroups
from baton.engine.outputs import RequestOutput, SampledToken, StepOutput
from baton.engine.request import BlockId, FinishReason, Request, RequestId
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import TransferError
from baton.process.progress import HEARTBEAT_S
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels, Context, check_peer
from baton.rpc.requests import engine_request, logprobs_to_proto
from baton.rpc.status import status_of
from baton.worker.base import NO_STORES, Host, StoredKV, Stores
from baton.worker.drain import Drain
from baton.worker.kv.prefix_pull import PrefixPull
from baton.worker.kv.receives import KVReceives
from baton.worker.kv.source import Announcements, announcements_for
from baton.worker.reporting import WorkerCounters
from baton.worker.request_trace import NO_TRACING, WorkerTrace, WorkerTracing

T = TypeVar("T")

ENDED = "this worker has ended its service; ask another"


async def beats_until(waiting: "asyncio.Future[T]", is_stuck: Callable[[], bool]) -> AsyncIterator[None]:
    """Yield every HEARTBEAT_S until `waiting` is done, except while the engine is stuck. Never raises its error."""
    while not waiting.done():
        await asyncio.wait((waiting,), timeout=HEARTBEAT_S)
        if not waiting.done() and not is_stuck():
            yield


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """A step's output for one prompt, and the monotonic time at which the step finished."""

    output: RequestOutput
    computed_at_s: float


@dataclass(slots=True, eq=False)
class PrefillJob:
    """One prompt to compute, and the source of its call's events."""

    request: Request
    num_tokens: int  # to compute; the engine appends the one that it samples to the request's
    num_caller_tokens: int  # tokens whose KV the caller already has
    prefix_source: worker_pb2.PeerWorker
    num_pulled_tokens: int = 0  # pulled from the prefix source
    stored: StoredKV | None = None  # KV of the prompt in stores below the pool
    trace: WorkerTrace | None = None  # None: the caller wants no timings
    pull: "asyncio.Task[None] | None" = None
    is_closed: bool = False  # its blocks are no longer held for the caller
    steps: "asyncio.Queue[PrefillStep]" = field(default_factory=asyncio.Queue)  # at most one item per chunk

    @classmethod
    def of(cls, message: worker_pb2.PrefillRequest, request_id: RequestId) -> "PrefillJob":
        """Return the job for a message: compute its tokens and sample one more."""
        request = engine_request(message, request_id)
        return cls(request, request.num_tokens, message.num_cached_tokens, message.prefix_source)

    async def events(
        self, announcements: Announcements, groups: KVGroups, is_stuck: Callable[[], bool]
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """Yield the prompt's events from the first step to the last block; outputs go before older checksums.

        Raises the request's EngineError if it fails.
        is_stuck: whether the engine has stopped stepping; while it steps, empty events keep the call alive.
        """
        order = groups.transfer_order(self.num_tokens)
        num_announced = self.num_caller_tokens // groups.block_size  # of each group
        is_last = False
        while not is_last or announcements.has_unchecked:
            if announcements.has_unchecked and self.steps.empty():
                computing = asyncio.ensure_future(announcements.next_checksums())
                try:
                    async for _ in beats_until(computing, is_stuck):  # a rank may be slow
                        yield worker_pb2.PrefillEvent()
                    checksums = await computing
                    if not self.is_closed:  # otherwise the blocks may have been overwritten in the meantime
                        yield worker_pb2.PrefillEvent(checksums=checksums)
                finally:
                    computing.cancel()
                continue
            getting = asyncio.ensure_future(self.steps.get())
            try:
                async for _ in beats_until(getting, is_stuck):
                    yield worker_pb2.PrefillEvent()
                step = await getting
            finally:
                getting.cancel()
            if step.output.error is not None:
                raise step.output.error
            sampled, num_ready = step.output.sampled, step.output.num_computed_tokens // groups.block_size
            state: Sequence[BlockId] = ()
            if sampled is not None:
                is_last, num_ready, state = True, order.end, self.request.current_state
            blocks = order.blocks(self.request.block_tables, num_announced, num_ready, state)
            yield worker_pb2.PrefillEvent(
                blocks=announcements.announce(
                    order.num_before(num_announced), blocks, step.computed_at_s, self.request.kv_origins
                ),
                prompt_logprobs=map(logprobs_to_proto, step.output.prompt_logprobs),
                first_token=self._first_token(sampled) if sampled is not None else None,
            )
            num_announced = max(num_announced, num_ready)

    def close(self) -> None:
        """Have the call end with UNAVAILABLE, after the events that are due, but without further checksums."""
        self.is_closed = True
        error = EngineEnded(ENDED)
        output = RequestOutput(self.request.request_id, 0, finish_reason=FinishReason.ERROR, error=error)
        self.steps.put_nowait(PrefillStep(output, 0.0))

    async def wait_closed(self) -> None:
        """Wait for `close`, after the last event, and raise its error."""
        while True:
            if (error := (await self.steps.get()).output.error) is not None:
                raise error

    def _first_token(self, sampled: SampledToken) -> worker_pb2.FirstToken:
        stored = self.stored.tokens_by_tier if self.stored is not None else {}
        num_cached = self.request.num_cached_tokens + self.num_pulled_tokens + sum(stored.values())
        return worker_pb2.FirstToken(
            token_id=sampled.token_id,
            logprobs=logprobs_to_proto(sampled.logprobs) if sampled.logprobs else None,
            num_cached_tokens=num_cached,
            num_pulled_tokens=self.num_pulled_tokens,
            stored_tokens=stored,
            timings=() if self.trace is None else self._timings(self.trace, num_cached),
        )

    def _timings(self, trace: WorkerTrace, num_cached_tokens: int) -> list[worker_pb2.TimedSpan]:
        """Return the timings of the prompt, which is computed."""
        trace.root.attributes |= {
            "baton.computed_tokens": self.num_tokens - num_cached_tokens,
            "baton.cached_tokens": num_cached_tokens,
            "baton.pulled_tokens": self.num_pulled_tokens,
        }
        trace.root.end()
        return trace.timings()


ENGINE_IDS = "prefill/"  # prefix of this service's request ids in the engine, which other services may share


class PrefillService(worker_pb2_grpc.PrefillServicer):
    """The Prefill service: one job for each call. An open call is a lease on its prompt's blocks."""

    def __init__(
        self,
        host: Host,
        channels: Channels,
        counters: WorkerCounters,
        drain: Drain,
        deadline_s: float,
        stores: Stores = NO_STORES,
        tracing: WorkerTracing = NO_TRACING,
    ) -> None:
        """deadline_s: of each read of a prefix pull."""
        self._host = host
        self._channels = channels
        self._counters = counters
        self._drain = drain
        self._deadline_s = deadline_s
        self._stores = stores
        self._tracing = tracing
        self._jobs: dict[RequestId, PrefillJob] = {}
        self._uncomputed: set[RequestId] = set()  # jobs whose prompt is not fully computed
        self._fills = KVReceives(host, drain)
        self._numbers = itertools.count(1)
        host.listen(self._on_step)

    async def Prefill(  # noqa: N802
        self, request: worker_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """Compute a prompt and announce its blocks; they are held until the caller ends the call."""
        host = self._host
        await check_peer(context, host.identity, request.incarnation, request.fingerprint)
        if self._drain.has_begun:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is draining; ask another")
        if host.is_short_of_ranks:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this worker's group is short of ranks; ask another")
        request_id = RequestId(f"{ENGINE_IDS}{next(self._numbers)}/{request.request_id}")
        job = PrefillJob.of(request, request_id)
        job.trace = self._tracing.begin_call("prefill", context)
        with self._drain.request():  # no await since `has_begun`: a drain that begins now waits for it
            announcements = await announcements_for(context, host, request.num_ranks)
            self._jobs[request_id] = job
            self._uncomputed.add(request_id)
            self._counters.num_prefills = len(self._uncomputed)
            try:
                try:
                    job.stored = await self._stores.find(job.request)
                    if job.is_closed:  # `close` has aborted what the engine did not have yet
                        raise EngineEnded(ENDED)
                    adding = job.stored.add() if job.stored else host.call(lambda engine: engine.add(job.request))
                    async for _ in beats_until(adding, self._is_stalled):
                        yield worker_pb2.PrefillEvent()
                    await adding
                finally:
                    self._counters.taken.note(request.router_id, request.number)
                yield worker_pb2.PrefillEvent(accepted=worker_pb2.PrefillAccepted(pools=host.ranks.describe()))
                async for event in job.events(announcements, host.kv_groups, self._is_stalled):
                    yield event
                await job.wait_closed()  # the lease ends with the call, or with the service
            except (EngineError, TransferError) as error:
                # TransferError: a rank of this worker is lost, or its GPU cannot compute checksums
                if job.trace is not None:
                    job.trace.failed(error)
                await context.abort(status_of(error).code, str(error))
            finally:
                self._end(request_id)

    def _is_stalled(self) -> bool:
        """Whether the engine makes no progress, so that the decode worker should try another prefill worker."""
        return self._host.is_stuck or self._host.is_short_of_ranks

    async def close(self) -> None:
        """End all calls and cancel their prefix pulls; return when none is running."""
        for request_id, job in list(self._jobs.items()):
            job.close()
            self._abort(request_id)  # now, and not when a caller reads the error
            self._cancel_pull(request_id)
        await self._fills.close()

    def _abort(self, request_id: RequestId) -> None:
        self._host.call(lambda engine: engine.abort(request_id))

    def _end(self, request_id: RequestId) -> None:
        self._abort(request_id)
        self._cancel_pull(request_id)
        self._mark_computed(request_id)
        if (trace := self._jobs.pop(request_id).trace) is not None:
            trace.end()

    def _mark_computed(self, request_id: RequestId) -> None:
        self._uncomputed.discard(request_id)
        self._counters.num_prefills = len(self._uncomputed)

    def _cancel_pull(self, request_id: RequestId) -> None:
        pull = self._jobs[request_id].pull
        if pull is not None:
            pull.cancel()

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            if (job := self._jobs.get(output.request_id)) is not None:
                job.steps.put_nowait(PrefillStep(output, step.finished_at_s))
                if job.trace is not None:
                    job.trace.note_step(step, output)
                if output.sampled is not None:
                    self._mark_computed(output.request_id)
        for request in step.receiving:
            if not request.request_id.startswith(ENGINE_IDS):
                continue
            job = self._jobs.get(request.request_id)
            if job is not None and job.trace is not None:
                job.trace.admitted(step.finished_at_s)
            if job is None:  # its call ended in the meantime
                self._fills.refuse(request)
            else:
                self._begin_receive(job)

    def _begin_receive(self, job: PrefillJob) -> None:
        """Start receiving the prompt's first blocks, from a store or another worker's cache."""
        if job.stored is not None:
            job.pull = self._fills.start(job.request, job.stored.run(), job.stored.outcome)
            return
        pull = PrefixPull(self._host, job.request, job.prefix_source, self._deadline_s)

        def outcome(task: "asyncio.Task[None]") -> Received:
            job.num_pulled_tokens = pull.num_pulled_tokens
            return pull.outcome(task, self._counters)

        job.pull = self._fills.start(job.request, pull.run(self._channels), outcome)

"""The connection to one worker's address, across restarts of the worker.

Describe returns which worker is at the address. Watch streams its load and the content of its prefix cache. Attach, to
a decode worker, carries the requests. When a stream ends, the router discards what it knows of the worker, fails the
worker's requests with WorkerLost (the dispatcher retries them) and starts over, unless the worker is in no registry and
has been unreachable for `GIVE_UP_S`.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence

import grpc

from baton.protos.worker_pb2 import (
    DescribeRequest,
    Hello,
    RecalledOutput,
    RecallRequest,
    WatchRequest,
    WorkerDescription,
    WorkerUpdate,
)
from baton.protos.worker_pb2 import WorkerRole as RoleNumber
from baton.protos.worker_pb2_grpc import DecodeStub, WorkerStub
from baton.router.errors import ShortOfRanks, WorkerLost
from baton.router.index.prefix_index import PrefixIndex, stores_of
from baton.router.policy.cluster import WorkerRole, WorkerSnapshot
from baton.router.workers.attach_stream import AttachStream
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.load import LoadEstimate, check_rates
from baton.router.workers.stranger import AttemptSlots, Stranger
from baton.rpc.backoff import Backoff
from baton.rpc.status import Unavailable
from baton.rpc.tls import Security

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 5.0
CLOSED = "the router closed the connection"
FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0
# After this shortage of ranks requests move: reports arrive every second, so all ranks of the group have reported it.
MOVE_AFTER_S = 2.0
GIVE_UP_S = 5.0  # after which a worker that is neither listed nor reachable is given up
ROLES = {
    RoleNumber.WORKER_ROLE_PREFILL: WorkerRole.PREFILL,
    RoleNumber.WORKER_ROLE_DECODE: WorkerRole.DECODE,
    RoleNumber.WORKER_ROLE_BOTH: WorkerRole.BOTH,
}


class SequenceGap(Exception):
    """A cache event is missing, so the router needs a new snapshot."""


class WorkerConnection:
    """The router's knowledge of one worker, and the streams to it."""

    def __init__(
        self,
        address: str,
        router_id: str,
        watch_interval_ms: int,
        index: PrefixIndex,
        check: Callable[[str, WorkerDescription], None],
        changed: Callable[[], None],
        security: Security,
        slots: AttemptSlots,
        given: tuple[str, ...] = (),
    ) -> None:
        """`check` raises WorkerLost if the router must not use the worker at the address.

        `given`: addresses of all workers in the router's options; the worker accepts them as its peers. Attempts to
        connect to another address take one of the `slots` until the first success.
        """
        self.address = address
        self.state = ConnectionState.CONNECTING
        self.description: WorkerDescription | None = None  # of the current incarnation; None: not connected
        self.last_description: WorkerDescription | None = None  # the same, but kept when the connection is lost
        self.load = LoadEstimate()
        self.attach: AttachStream | None = None
        self.reached_s = 0.0  # time of the first report of this incarnation, on the monotonic clock
        self.last_error = ""  # reason of the last disconnection
        self.is_listed = True  # the registry has the worker
        self.is_elsewhere = False  # the worker serves another of the router's models, whose pool has the address
        self.has_snapshot = False  # the index has the content of the worker's cache
        self.losses: Counter[WorkerRole] = Counter()  # incarnations that ended while ready, by role
        self._state_since_s = 0.0  # monotonic time of the last report that changed the state
        self._alone_since_s = 0.0  # event loop time since which it is neither listed nor connected
        self._router_id = router_id
        self._watch_interval_ms = watch_interval_ms
        self._index = index
        self._check = check
        self._changed = changed
        self._security = security
        self.channel: grpc.aio.Channel | None = None  # to the current incarnation; None: not connected
        self._given = given
        self._stranger = Stranger(slots) if address not in given else None  # None after the first connection, too

    @property
    def is_stranger(self) -> bool:
        """Whether only a registry lists a worker at the address: the router was never connected to one."""
        return self._stranger is not None and self.description is None

    @property
    def is_learning(self) -> bool:
        """Whether the router expects a snapshot of the worker's cache soon, as nothing shows that it is unreachable.

        A worker that is short of ranks takes no requests, and sends its cache once it takes them again.
        """
        if self.has_snapshot or self.state is ConnectionState.SHORT_OF_RANKS:
            return False
        return self.description is not None or not self.last_error

    async def run(self) -> None:
        """Keep the connection until cancelled, until the worker is given up, or until another pool has its address."""
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        while not self._is_given_up():
            stranger = self._stranger
            reason = CLOSED
            try:
                if stranger is not None:
                    await stranger.begin()
                await self._session()
            except (grpc.RpcError, WorkerLost, ValueError) as error:
                reason = _reason(error)
                self._count_loss()
            finally:
                if stranger is not None:
                    stranger.fail()
                self._forget(reason)
            await (self._stranger.pause() if self._stranger is not None else backoff.wait())

    def mark_listed(self, is_listed: bool) -> None:
        """Record whether the registry lists the worker."""
        if self.is_listed and not is_listed and not self.is_stranger and not self.is_elsewhere:
            self._alone_since_s = asyncio.get_running_loop().time()
            logger.info("the worker at %s is not in the registry; it is kept while it can be reached", self.address)
        self.is_listed = is_listed

    def fail_requests(self, error: Unavailable) -> None:
        """Fail all current and future requests at this incarnation of the worker with the error."""
        if self.attach is not None:
            self.attach.close(error)

    def note_drain(self) -> None:
        """Record that the worker handed a request off: it drains, though its own report may arrive later."""
        if self.state is ConnectionState.READY:
            self._enter_state(ConnectionState.DRAINING)

    async def recall(self, resume_keys: Sequence[bytes], timeout_s: float) -> Sequence[RecalledOutput]:
        """Return the outputs that the worker remembers; none if it does not decode or is unreachable."""
        if self.channel is None or self.attach is None:
            return ()
        try:
            request = RecallRequest(resume_keys=resume_keys)
            return (await DecodeStub(self.channel).Recall(request, timeout=timeout_s)).outputs
        except grpc.RpcError as error:
            logger.debug("%s recalls nothing: %s", self.address, error)
            return ()

    def snapshot(self) -> WorkerSnapshot | None:
        """Return the worker's snapshot for policies; None if it takes no requests."""
        description = self.description
        if self.state is not ConnectionState.READY or description is None:
            return None
        return self.load.snapshot(description, ROLES[description.role])

    def may_prefill_later(self, fingerprints: frozenset[str], num_tokens: int) -> bool:
        """Return whether the worker takes no requests now, and may later prefill `num_tokens` for this KV.

        A worker that returns is assumed to be as before. A given address that was never reached may have any worker.
        """
        if self.state is ConnectionState.READY:
            return False
        last = self.last_description
        if last is None:
            return self.address in self._given
        can_prefill = ROLES[last.role] is not WorkerRole.DECODE and last.max_model_len > num_tokens
        return can_prefill and (last.pool.fingerprint or last.fingerprint) in fingerprints

    def as_source(self) -> WorkerSnapshot | None:
        """Return the worker's snapshot as a prefix source, draining or not; None if it is unavailable."""
        description = self.description
        if self.state in (ConnectionState.CONNECTING, ConnectionState.SHORT_OF_RANKS) or description is None:
            return None
        return self.load.snapshot(description, ROLES[description.role])

    async def _session(self) -> None:
        """Connect to one incarnation of the worker until it ends, which is always an error."""
        async with self._security.channel(self.address) as channel:
            timeout_s = DESCRIBE_TIMEOUT_S if self._stranger is None else self._stranger.timeout_s
            description = await WorkerStub(channel).Describe(DescribeRequest(), timeout=timeout_s)
            if description.role not in ROLES:
                raise WorkerLost(f"the worker at {self.address} has the unknown role {description.role}")
            self._check(self.address, description)
            self.load = LoadEstimate()
            self.description = self.last_description = description
            self._changed()
            if self._stranger is not None:
                self._stranger.answered()
            streams = [self._watch(channel, description)]
            if ROLES[description.role] is not WorkerRole.PREFILL:
                self.attach = AttachStream(description.worker_id)
                hello = Hello(router_id=self._router_id, incarnation=description.incarnation)
                streams.append(self.attach.run(channel, hello))
            self.channel = channel
            try:
                await _run_to_first_error(streams)
            finally:
                self.channel = None

    async def _watch(self, channel: grpc.aio.Channel, description: WorkerDescription) -> None:
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        while True:
            try:
                await self._follow(channel, description)
            except SequenceGap as gap:
                logger.warning("%s: %s; taking a new snapshot", description.worker_id, gap)
            await backoff.wait()  # new snapshots must not slow a worker down further

    async def _follow(self, channel: grpc.aio.Channel, description: WorkerDescription) -> None:
        """Apply updates. Raises SequenceGap if a cache event is missing, or an error at the end of the stream."""
        request = WatchRequest(interval_ms=self._watch_interval_ms, router_id=self._router_id, workers=self._given)
        call = WorkerStub(channel).Watch(request)
        next_sequence = 0
        try:
            async for update in call:
                if update.incarnation != description.incarnation:
                    raise WorkerLost(f"{description.worker_id} has restarted: its incarnation is {update.incarnation}")
                if update.HasField("cache"):
                    if update.cache.sequence != next_sequence:
                        raise SequenceGap(f"got cache event {update.cache.sequence}, expected {next_sequence}")
                    self._apply_cache(update)
                    next_sequence += 1
                self._apply_load(update)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise SequenceGap(error.details() or "the worker dropped this router, which read too slowly") from error
            raise
        finally:
            self.has_snapshot = False
            call.cancel()
        raise WorkerLost(f"{description.worker_id} ended its stream of reports")

    def _apply_cache(self, update: WorkerUpdate) -> None:
        if update.cache.sequence == 0:
            self._index.reset(update.incarnation)
            self._index.reset(stores_of(update.incarnation))
        self._index.update(update.incarnation, update.cache.removed, update.cache.stored)
        if update.cache.saved or update.cache.lost:
            self._index.update(stores_of(update.incarnation), update.cache.lost, update.cache.saved)
        self.has_snapshot = self.has_snapshot or not update.cache.more

    def _apply_load(self, update: WorkerUpdate) -> None:
        if update.HasField("load"):
            check_rates(update.load)
            taken = update.taken.numbers if update.HasField("taken") else None
            self.load.report(update.load, taken, time.monotonic())
        if update.HasField("adapters"):
            self.load.list_adapters({each.name: each.digest for each in update.adapters.adapters})
            self._changed()
        state = ConnectionState.SHORT_OF_RANKS if update.short_of_ranks else ConnectionState.READY
        if update.draining:
            state = ConnectionState.DRAINED if update.drained else ConnectionState.DRAINING
        self._enter_state(state)
        self._move_requests()

    def _move_requests(self) -> None:
        """Move the requests of a worker that has been short of ranks for a while to workers that can continue them."""
        is_short = self.state is ConnectionState.SHORT_OF_RANKS
        if is_short and self.attach is not None and time.monotonic() - self._state_since_s >= MOVE_AFTER_S:
            assert self.description is not None
            self.attach.move(ShortOfRanks(f"decode worker {self.description.worker_id} waits for ranks of its group"))

    def _enter_state(self, state: ConnectionState) -> None:
        """Change the state to the reported one."""
        if state is self.state:
            return
        assert self.description is not None
        if self.state is ConnectionState.CONNECTING:
            self.reached_s = time.monotonic()
            self._stranger = None
        logger.info("%s at %s is %s", self.description.worker_id, self.address, state.value)
        self.state = state
        self._state_since_s = time.monotonic()
        self._changed()

    def _count_loss(self) -> None:
        """Count a loss if the worker was ready: a worker that is shut down reports first that it drains."""
        if self.state is ConnectionState.READY and self.description is not None:
            self.losses[ROLES[self.description.role]] += 1

    def _forget(self, reason: str) -> None:
        """Discard the incarnation, and fail its requests."""
        is_new = self.state is not ConnectionState.CONNECTING or not self.last_error
        if is_new and not (self.is_stranger and reason == CLOSED):  # thousands of strangers may be removed at once
            logger.info("no connection to %s: %s", self.address, reason)
        self.last_error = reason
        had_worker = self.description is not None
        self.fail_requests(WorkerLost(f"the worker at {self.address} is lost: {reason}"))
        if self.description is not None:
            self._index.reset(self.description.incarnation)
            self._index.reset(stores_of(self.description.incarnation))
            self._alone_since_s = asyncio.get_running_loop().time()
        self.description = self.attach = None
        self.state = ConnectionState.CONNECTING
        if had_worker:
            self._changed()

    def _is_given_up(self) -> bool:
        alone_s = asyncio.get_running_loop().time() - self._alone_since_s
        return self.is_elsewhere or (not self.is_listed and alone_s > GIVE_UP_S)


async def _run_to_first_error(streams: list[Coroutine[object, object, None]]) -> None:
    """Run streams, all of which end with an error, and raise the first error once all have ended.

    A TaskGroup would not do: up to Python 3.12 its error replaces a cancellation at the same moment. The caller would
    treat the error as the end of a session and go on forever.
    """
    tasks = [asyncio.create_task(stream) for stream in streams]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reason(error: Exception) -> str:
    """Return the error's text, or its type if it has none."""
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return details or type(error).__name__

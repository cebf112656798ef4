"""The Worker service: description, load and cache reports, drain."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import grpc

from baton.doctor.known_peers import KnownPeers
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context
from baton.worker.base import Host
from baton.worker.cache_feed import CacheFeed, Subscription
from baton.worker.drain import Drain, DrainConflict, DrainState
from baton.worker.reporting import MAX_UNTOLD, ReportClock, WorkerCounters, load_report

MIN_INTERVAL_S = 0.001
BUSY_INTERVAL_S = 0.1  # longest time between two load checks while there is work
IDLE_INTERVAL_S = 1.0  # the same without work; a report is then sent even if nothing changed


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """The service of every role: Describe, Watch, Drain and Undrain."""

    def __init__(
        self,
        host: Host,
        counters: WorkerCounters,
        drain: Drain,
        describe: Callable[[], worker_pb2.WorkerDescription],
        transport_choices: Callable[[], dict[str, str]],
        drain_timeout_s: float,
        peers: KnownPeers,
        idle_interval_s: float = IDLE_INTERVAL_S,
    ) -> None:
        """`idle_interval_s`: between two reports of an idle worker; `math.inf` sends none without a change."""
        self._host = host
        self._counters = counters
        self._drain = drain
        self._describe = describe
        self._transport_choices = transport_choices
        self._drain_timeout_s = drain_timeout_s
        self._peers = peers
        self._idle_interval_s = idle_interval_s
        self._feed = CacheFeed(host)
        self._clocks: set[ReportClock] = set()
        host.listen(lambda _: self._note_news())
        drain.watch(self._note_news)  # an aborted request ends without a step, and frees blocks

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerDescription:
        """Return the worker's description."""
        return self._describe()

    async def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Refuse new requests from now on; return once none is left."""
        if not 0 <= request.timeout_s < math.inf:
            text = f"timeout_s is {request.timeout_s}, but must be a number of seconds, or 0 for the worker's default"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            await self._drain.run(request.timeout_s or self._drain_timeout_s)
        except DrainConflict as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return worker_pb2.DrainResponse()

    async def Undrain(  # noqa: N802
        self, request: worker_pb2.UndrainRequest, context: Context
    ) -> worker_pb2.UndrainResponse:
        """Take requests again."""
        try:
            self._drain.undo()
        except DrainConflict as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return worker_pb2.UndrainResponse()

    async def Watch(  # noqa: N802
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Stream a snapshot, then changes, at most once per interval."""
        clock = ReportClock(max(request.interval_ms / 1000, MIN_INTERVAL_S))
        self._clocks.add(clock)
        draining = asyncio.create_task(self._report_drain(clock))
        try:
            async with self._feed.subscribe() as subscription:
                with self._peers.named(request.workers), self._counters.taken.watched(request.router_id) as taken:
                    async for update in self._updates(subscription, taken, clock, is_counting=bool(request.router_id)):
                        yield update
        finally:
            draining.cancel()
            self._clocks.discard(clock)
            clock.close()
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the watcher reads too slowly; watch again")

    async def _updates(
        self, subscription: Subscription, taken: list[int], clock: ReportClock, is_counting: bool
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Yield one router's updates until its subscription is lost."""
        last: worker_pb2.WorkerUpdate | None = None
        last_sent_at_s = 0.0
        now_s = asyncio.get_running_loop().time
        while not subscription.is_lost:
            numbers, taken[:] = list(taken), ()  # before the load is read, which then includes them
            stats, _ = await asyncio.gather(self._host.stats(), self._feed.refresh())  # between the same two steps
            load = load_report(stats, self._counters, self._transport_choices())
            update = worker_pb2.WorkerUpdate(
                incarnation=self._host.pool.incarnation,
                load=load,
                draining=self._drain.has_begun,
                drained=self._drain.state is DrainState.DRAINED,
                short_of_ranks=self._host.is_short_of_ranks,
            )
            events = subscription.take()
            if events is not None or numbers or update != last or now_s() - last_sent_at_s >= IDLE_INTERVAL_S:
                message = worker_pb2.WorkerUpdate()
                message.CopyFrom(update)
                if events is not None:
                    message.cache.CopyFrom(events)
                if is_counting and last is not None and len(numbers) < MAX_UNTOLD:
                    message.taken.numbers.extend(numbers)
                    message.taken.SetInParent()
                last, last_sent_at_s = update, now_s()
                yield message
            if subscription.is_pending:
                continue  # a large snapshot takes several messages, one after the other
            await clock.wait(BUSY_INTERVAL_S if load.num_running + load.num_waiting else self._idle_interval_s)

    async def _report_drain(self, clock: ReportClock) -> None:
        """Make a report due at once when the worker drains or is undrained."""
        state = self._drain.state
        while True:
            state = await self._drain.wait_change(state)
            clock.note_urgent_news()

    def _note_news(self) -> None:
        for clock in self._clocks:
            clock.note_news()

"""What every simulated worker says of itself, with the timing of a real one (see `baton.worker.service`)."""

import asyncio
import math
from collections.abc import AsyncIterator

import grpc

from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context
from baton.simulation.engine.cache_feed import CacheSubscription
from baton.simulation.engine.core import EngineCore
from baton.simulation.workers.load_report import load_report
from baton.worker.drain import Drain, DrainConflict, DrainState
from baton.worker.reporting import MAX_UNTOLD, ReportClock, WorkerCounters

MIN_INTERVAL_S = 0.001
DRAIN_TIMEOUT_S = 30.0  # unless the caller says otherwise
BUSY_INTERVAL_S = 0.1  # longest time between two updates while there is work


class SimulatedWorkerService(worker_pb2_grpc.WorkerServicer):
    """Describe, Watch, Drain and Undrain; an idle worker says nothing after its last news, and so costs nothing."""

    def __init__(
        self, core: EngineCore, counters: WorkerCounters, drain: Drain, description: worker_pb2.WorkerDescription
    ) -> None:
        self._core = core
        self._counters = counters
        self._drain = drain
        self._description = description
        self._clocks: set[ReportClock] = set()
        core.listen(lambda _: self._note_news())
        drain.watch(self._note_news)

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerDescription:
        """Who this worker is."""
        return self._description

    async def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Takes no new requests from now on; returns once none is left."""
        try:
            await self._drain.run(request.timeout_s or DRAIN_TIMEOUT_S)
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
        """A snapshot, then what changed, at most once an interval."""
        clock = ReportClock(max(request.interval_ms / 1000, MIN_INTERVAL_S))
        subscription = self._core.cache_feed.subscribe()
        self._clocks.add(clock)
        draining = asyncio.create_task(self._report_drain(clock))
        try:
            with self._counters.taken.watched(request.router_id) as taken:
                async for update in self._updates(subscription, taken, clock, is_counting=bool(request.router_id)):
                    yield update
        finally:
            draining.cancel()
            self._clocks.discard(clock)
            clock.close()
            subscription.close()
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the watcher lags too far behind; watch again")

    async def _updates(
        self, subscription: CacheSubscription, taken: list[int], clock: ReportClock, is_counting: bool
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """One router's updates, until its subscription is lost."""
        cache_sequence, is_first = 0, True
        while not subscription.is_lost:
            update = worker_pb2.WorkerUpdate(
                incarnation=self._description.incarnation,
                load=load_report(self._core, self._counters),
                draining=self._drain.has_begun,
                drained=self._drain.state is DrainState.DRAINED,
            )
            changes = subscription.take()
            if is_first or changes.stored or changes.removed:
                update.cache.sequence = cache_sequence
                update.cache.stored, update.cache.removed = b"".join(changes.stored), b"".join(changes.removed)
                cache_sequence += 1
            if is_counting and not is_first and len(taken) < MAX_UNTOLD:
                update.taken.numbers.extend(taken)
                update.taken.SetInParent()
            taken.clear()
            is_first = False
            yield update
            await clock.wait(BUSY_INTERVAL_S if self._core.has_work else math.inf)

    async def _report_drain(self, clock: ReportClock) -> None:
        """Wake the watcher's stream when the worker drains or is undrained."""
        state = self._drain.state
        while True:
            state = await self._drain.wait_change(state)
            clock.note_urgent_news()

    def _note_news(self) -> None:
        for clock in self._clocks:
            clock.note_news()

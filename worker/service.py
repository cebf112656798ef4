"""The Worker service: description, load and cache reports, drain, change of role."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from baton.doctor.known_peers import KnownPeers
from baton.engine.errors import EngineEnded, EngineError, UnknownAdapter
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context
from baton.rpc.status import shortened, status_of
from baton.settings.names import Role
from baton.worker.adapters.base import NO_ADAPTERS, Adapters
from baton.worker.base import Host
from baton.worker.cache_feed import CacheFeed, Subscription
from baton.worker.drain import Drain, DrainConflict, DrainState
from baton.worker.kv.stored_hashes import StoredHashes
from baton.worker.reporting import MAX_UNTOLD, ReportClock, WorkerCounters, load_report

MIN_INTERVAL_S = 0.001
BUSY_INTERVAL_S = 0.1  # longest time between two load checks while there is work
IDLE_INTERVAL_S = 1.0  # the same without work; a report is then sent even if nothing changed
CHANGED = "the worker has changed its role, and has a new incarnation"
ROLE_NAMES: dict[int, Role] = {
    worker_pb2.WORKER_ROLE_PREFILL: "prefill",
    worker_pb2.WORKER_ROLE_DECODE: "decode",
    worker_pb2.WORKER_ROLE_BOTH: "both",
}


class RoleConflict(Exception):
    """A change of role that is not possible; the text says why."""


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """The service of every role: Describe, Watch, Drain, Undrain, ChangeRole, and the LoRA adapters."""

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
        change_role: Callable[[Role, float], Awaitable[str]] | None = None,
        stored: StoredHashes | None = None,
        adapters: Adapters = NO_ADAPTERS,
    ) -> None:
        """Serve one incarnation of the worker.

        idle_interval_s: between two reports of an idle worker; `math.inf` sends none without a change.
        change_role: changes the role after a drain with this timeout, and returns the new incarnation; raises
        RoleConflict or DrainConflict. None: the worker keeps its role.
        stored: hashes of blocks in the stores below the pool; None: there are no stores.
        adapters: LoRA adapters of the worker.
        """
        self._host = host
        self._counters = counters
        self._drain = drain
        self._describe = describe
        self._transport_choices = transport_choices
        self._drain_timeout_s = drain_timeout_s
        self._peers = peers
        self._idle_interval_s = idle_interval_s
        self._change_role = change_role
        self._adapters = adapters
        self._incarnation = host.identity.incarnation
        self._is_closed = False
        self._feed = CacheFeed(host, stored)
        self._clocks: set[ReportClock] = set()
        host.listen(lambda _: self.note_news())
        drain.watch(self.note_news)  # an aborted request ends without a step, and frees blocks

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerDescription:
        """Return the worker's description."""
        return self._describe()

    async def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Refuse new requests from now on; return once none is left."""
        timeout_s = await self._timeout_of(request.timeout_s, context)
        try:
            await self._drain.run(timeout_s)
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

    async def ChangeRole(  # noqa: N802
        self, request: worker_pb2.ChangeRoleRequest, context: Context
    ) -> worker_pb2.ChangeRoleResponse:
        """Drain, then serve another role; return once it is ready."""
        timeout_s = await self._timeout_of(request.timeout_s, context)
        role = ROLE_NAMES.get(request.role)
        if role is None:
            text = f"role is {request.role}, but must be prefill (1), decode (2) or both (3)"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        elif self._change_role is None:
            text = "this worker cannot change its role; start another one instead"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        else:
            try:
                return worker_pb2.ChangeRoleResponse(incarnation=await self._change_role(role, timeout_s))
            except (RoleConflict, DrainConflict) as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except EngineEnded as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort raises")

    async def LoadAdapter(  # noqa: N802
        self, request: worker_pb2.LoadAdapterRequest, context: Context
    ) -> worker_pb2.LoadAdapterResponse:
        """Load a LoRA adapter."""
        try:
            adapter = await self._adapters.load(request.name, request.path)
        except EngineError as error:
            await context.abort(status_of(error).code, shortened(str(error)))
        self._note_urgent_news()
        return worker_pb2.LoadAdapterResponse(adapter=adapter)

    async def UnloadAdapter(  # noqa: N802
        self, request: worker_pb2.UnloadAdapterRequest, context: Context
    ) -> worker_pb2.UnloadAdapterResponse:
        """Refuse new requests for a LoRA adapter, and free it after the last one."""
        try:
            await self._adapters.unload(request.name)
        except UnknownAdapter as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except EngineError as error:
            await context.abort(status_of(error).code, shortened(str(error)))
        self._note_urgent_news()
        return worker_pb2.UnloadAdapterResponse()

    async def ListAdapters(  # noqa: N802
        self, request: worker_pb2.ListAdaptersRequest, context: Context
    ) -> worker_pb2.AdapterList:
        """Return the LoRA adapters."""
        listed = worker_pb2.AdapterList()
        listed.CopyFrom(self._adapters.list())
        resident = frozenset((await self._host.stats()).resident_adapters)
        for adapter in listed.adapters:
            adapter.is_resident = adapter.name in resident
        return listed

    async def Watch(  # noqa: N802
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Stream a snapshot, then changes, at most once per interval."""
        if self._is_closed:  # the next incarnation's service distributes the changes of the cache
            await context.abort(grpc.StatusCode.UNAVAILABLE, CHANGED)
        clock = ReportClock(max(request.interval_ms / 1000, MIN_INTERVAL_S))
        self._clocks.add(clock)
        draining = asyncio.create_task(self._report_drain(clock))
        try:
            async with self._feed.subscribe() as subscription:
                with self._peers.named(request.workers), self._counters.taken.watched(request.router_id) as taken:
                    async for update in self._updates(subscription, taken, clock, is_counting=bool(request.router_id)):
                        yield update
            if self._is_closed:  # a short drain may not have been reported
                yield worker_pb2.WorkerUpdate(incarnation=self._incarnation, draining=True, drained=True)
        finally:
            draining.cancel()
            self._clocks.discard(clock)
            clock.close()
        if self._is_closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, CHANGED)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the watcher reads too slowly; watch again")

    def close(self) -> None:
        """End the streams of reports: the incarnation has ended."""
        self._is_closed = True
        self._note_urgent_news()

    async def _updates(
        self, subscription: Subscription, taken: list[int], clock: ReportClock, is_counting: bool
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Yield one router's updates until its subscription is lost."""
        last: worker_pb2.WorkerUpdate | None = None
        last_sent_at_s = 0.0
        adapters: worker_pb2.AdapterList | None = None  # last sent
        now_s = asyncio.get_running_loop().time
        while not subscription.is_lost and not self._is_closed:
            numbers, taken[:] = list(taken), ()  # before the load is read, which then includes them
            stats, _ = await asyncio.gather(self._host.stats(), self._feed.refresh())  # between the same two steps
            load = load_report(stats, self._counters, self._transport_choices())
            update = worker_pb2.WorkerUpdate(
                incarnation=self._incarnation,
                load=load,
                draining=self._drain.has_begun,
                drained=self._drain.state is DrainState.DRAINED,
                short_of_ranks=self._host.is_short_of_ranks,
            )
            events, listed = subscription.take(), self._adapters.list()
            is_listed = listed == (adapters or worker_pb2.AdapterList())
            has_news = events is not None or numbers or not is_listed or update != last
            if has_news or now_s() - last_sent_at_s >= IDLE_INTERVAL_S:
                message = worker_pb2.WorkerUpdate()
                message.CopyFrom(update)
                if events is not None:
                    message.cache.CopyFrom(events)
                if is_counting and last is not None and len(numbers) < MAX_UNTOLD:
                    message.taken.numbers.extend(numbers)
                    message.taken.SetInParent()
                if not is_listed:
                    message.adapters.CopyFrom(listed)
                    message.adapters.SetInParent()
                last, last_sent_at_s, adapters = update, now_s(), listed
                yield message
            if subscription.is_pending:
                continue  # a large snapshot takes several messages, one after the other
            await clock.wait(BUSY_INTERVAL_S if load.num_running + load.num_waiting else self._idle_interval_s)

    async def _timeout_of(self, timeout_s: float, context: Context) -> float:
        """Return the timeout of a drain. Ends the call if it is invalid."""
        if not 0 <= timeout_s < math.inf:
            text = f"timeout_s is {timeout_s}, but must be a number of seconds, or 0 for the worker's default"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return timeout_s or self._drain_timeout_s

    async def _report_drain(self, clock: ReportClock) -> None:
        """Make a report due at once when the worker drains or is undrained."""
        state = self._drain.state
        while True:
            state = await self._drain.wait_change(state)
            clock.note_urgent_news()

    def _note_urgent_news(self) -> None:
        for clock in self._clocks:
            clock.note_urgent_news()

    def note_news(self) -> None:
        """Make a report due to every watcher, at most one per interval."""
        for clock in self._clocks:
            clock.note_news()

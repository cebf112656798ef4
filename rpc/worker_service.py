"""What every worker says of itself."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

from protos import worker_pb2, worker_pb2_grpc
from rpc.cache_feed import CacheFeed
from rpc.drain import Drain
from rpc.engine_host import EngineHost
from rpc.peers import Context
from rpc.worker_counters import WorkerCounters

MIN_INTERVAL_S = 0.01
RESEND_S = 1.0  # load is repeated this often even if nothing changed


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """Describe, Watch and Drain."""

    def __init__(
        self,
        host: EngineHost,
        counters: WorkerCounters,
        drain: Drain,
        describe: Callable[[], worker_pb2.WorkerDescription],
        transport_choices: Callable[[], dict[str, str]],
    ) -> None:
        self._host = host
        self._counters = counters
        self._drain = drain
        self._describe = describe
        self._transport_choices = transport_choices
        self._feed = CacheFeed(host)

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerDescription:
        """Who this worker is."""
        return self._describe()

    async def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Takes no new requests from now on; returns once none is left."""
        self._drain.begin()
        await self._drain.wait_idle()
        return worker_pb2.DrainResponse()

    async def Watch(  # noqa: N802
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """A snapshot, then what changed, at most once an interval."""
        interval_s = max(request.interval_ms / 1000, MIN_INTERVAL_S)
        last: worker_pb2.WorkerUpdate | None = None
        last_sent_at_s = 0.0
        clock = asyncio.get_running_loop().time
        async with self._feed.subscribe() as subscription:
            while not subscription.is_lost:
                update = worker_pb2.WorkerUpdate(
                    incarnation=self._host.pool.incarnation, load=await self._load(), draining=self._drain.has_begun
                )
                await self._feed.refresh()
                events = subscription.take()
                if events is not None or update != last or clock() - last_sent_at_s >= RESEND_S:
                    last, last_sent_at_s = update, clock()
                    message = worker_pb2.WorkerUpdate()
                    message.CopyFrom(update)
                    if events is not None:
                        message.cache.CopyFrom(events)
                    yield message
                await asyncio.sleep(interval_s)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the watcher lags too far behind; watch again")

    async def _load(self) -> worker_pb2.WorkerLoad:
        stats = await self._host.stats()
        return worker_pb2.WorkerLoad(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_queued_tokens=stats.num_queued_tokens,
            num_free_blocks=stats.num_free_blocks,
            num_blocks=stats.num_blocks,
            step_s=stats.step_s,
            num_generated_tokens=stats.num_generated_tokens,
            num_prefilled_tokens=stats.num_prefilled_tokens,
            num_preemptions=stats.num_preemptions,
            handovers=self._counters.handovers,
            handover_bytes=self._counters.handover_bytes,
            handover_failures=self._counters.handover_failures,
            checksum_failures=self._counters.checksum_failures,
            peer_transports=self._transport_choices(),
        )

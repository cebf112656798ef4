"""Watch over real gRPC, with a scheduler without a model."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from baton.doctor.known_peers import KnownPeers
from baton.engine.config import EngineConfig
from baton.engine.kv.block_hash import hash_blocks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.outputs import EngineStats, SampledToken, StepOutput
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import StepResult
from baton.engine.scheduling.scheduler import Scheduler
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.worker.drain import Drain, DrainState
from baton.worker.reporting import WorkerCounters
from baton.worker.service import BUSY_INTERVAL_S, WorkerService

PROMPT = list(range(20))
SOON_S = 5.0


class SteppedHost:
    """An engine host that the test steps; calls run at once."""

    def __init__(self) -> None:
        self.config = EngineConfig(model="none", block_size=4, max_num_seqs=4, max_num_batched_tokens=8)
        self.block_bytes = 1000
        self.blocks = BlockManager(64, 4, enable_prefix_caching=True)
        self.scheduler = Scheduler(self.config, self.blocks, FinishRule(frozenset(), 200))
        self.identity = SimpleNamespace(incarnation="life")
        self.num_stats = 0
        self.is_short_of_ranks = False
        self._listeners: list[Callable[[StepOutput], None]] = []
        self._held: list[tuple[Callable[[Any], Any], asyncio.Future[Any]]] = []

    async def wait_unless_short(self, future: asyncio.Future[object]) -> bool:
        if not self.is_short_of_ranks:
            await asyncio.wait((future,))
        return future.done()

    def lose_ranks(self) -> None:
        """Hold calls from now on."""
        self.is_short_of_ranks = True

    def regain_ranks(self) -> None:
        """Run the calls that were held."""
        self.is_short_of_ranks = False
        for function, future in self._held:
            future.set_result(function(self))
        self._held.clear()

    def listen(self, listener: Callable[[StepOutput], None]) -> None:
        self._listeners.append(listener)

    def call(self, function: Callable[[Any], Any]) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        if self.is_short_of_ranks:
            self._held.append((function, future))
        else:
            future.set_result(function(self))
        return future

    async def stats(self) -> EngineStats:
        self.num_stats += 1
        num_running = len(self.scheduler.running)
        return EngineStats(
            num_running=num_running,
            num_waiting=self.scheduler.num_unfinished - num_running,
            num_queued_tokens=self.scheduler.num_queued_tokens,
            num_free_blocks=self.blocks.cache.pool.num_free,
            num_blocks=self.blocks.num_usable,
            step_s=0.0,
            num_generated_tokens=0,
            num_prefilled_tokens=0,
            num_preemptions=0,
            num_cached_tokens=0,
            num_looked_up_tokens=0,
            prefill_tokens_per_s=1000.0,
            decode_step_s=0.5,
            decode_sequence_s=0.25,
        )

    def add(self, name: str) -> None:
        self.scheduler.add(Request(RequestId(name), list(PROMPT), 20, SamplingParams(max_tokens=9, seed=1)))

    def step(self) -> None:
        scheduled = self.scheduler.schedule().requests
        results = [StepResult(SampledToken(7)) if item.samples else StepResult() for item in scheduled]
        output = StepOutput(self.scheduler.update(scheduled, results))
        for listener in self._listeners:
            listener(output)


class WatchedWorker:
    """A worker service on a port, and the updates of its watchers."""

    def __init__(self, host: SteppedHost, counters: WorkerCounters, drain: Drain, channel: grpc.aio.Channel) -> None:
        self.host = host
        self.counters = counters
        self.drain = drain
        self._stub = worker_pb2_grpc.WorkerStub(channel)

    async def undrain(self) -> None:
        await self._stub.Undrain(worker_pb2.UndrainRequest())

    async def drain_call(self, timeout_s: float = 0.0) -> None:
        await self._stub.Drain(worker_pb2.DrainRequest(timeout_s=timeout_s))

    def watch(self, interval_ms: int = 1, router_id: str = "") -> Any:
        return self._stub.Watch(worker_pb2.WatchRequest(interval_ms=interval_ms, router_id=router_id))


@asynccontextmanager
async def watched_worker() -> AsyncIterator[WatchedWorker]:
    host, counters, drain = SteppedHost(), WorkerCounters(), Drain()
    server = grpc.aio.server()
    service = WorkerService(host, counters, drain, worker_pb2.WorkerDescription, dict, 1.0, KnownPeers(None))  # type: ignore[arg-type]
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield WatchedWorker(host, counters, drain, channel)
    finally:
        await server.stop(None)


async def following(call: Any) -> worker_pb2.WorkerUpdate:
    async with asyncio.timeout(SOON_S):
        update: worker_pb2.WorkerUpdate = await call.read()
        return update


async def until(call: Any, condition: Callable[[worker_pb2.WorkerUpdate], bool]) -> worker_pb2.WorkerUpdate:
    async with asyncio.timeout(SOON_S):
        while True:
            update: worker_pb2.WorkerUpdate = await call.read()
            if condition(update):
                return update


async def test_a_watch_sends_a_snapshot_then_the_changes_of_each_step() -> None:
    async with watched_worker() as worker:
        call = worker.watch()
        first = await following(call)
        assert (first.incarnation, first.cache.sequence, first.load.num_running) == ("life", 0, 0)
        assert (first.load.prefill_tokens_per_s, first.load.decode_step_s) == (1000.0, 0.5)
        worker.host.add("a")
        worker.host.step()
        update = await until(call, lambda update: update.HasField("cache"))
        assert update.cache.sequence == 1
        assert update.cache.stored == b"".join(hash_blocks(PROMPT[:8], 4))
        assert (update.load.num_running, update.load.num_queued_tokens) == (1, 12)


async def test_a_worker_that_is_short_of_ranks_reports_it_to_a_new_router() -> None:
    """The snapshot follows once there are enough ranks, then the changes."""
    async with watched_worker() as worker:
        worker.host.add("a")
        worker.host.step()
        worker.host.lose_ranks()
        call = worker.watch()
        first = await following(call)
        assert first.short_of_ranks
        assert not first.HasField("cache")
        worker.host.regain_ranks()
        snapshot = await until(call, lambda update: update.HasField("cache"))
        assert snapshot.cache.sequence == 0
        assert snapshot.cache.stored == b"".join(hash_blocks(PROMPT[:8], 4))
        assert not snapshot.short_of_ranks
        worker.host.step()
        assert (await until(call, lambda update: update.HasField("cache"))).cache.sequence == 1


async def test_every_router_gets_updates() -> None:
    async with watched_worker() as worker:
        calls = [worker.watch() for _ in range(3)]
        for call in calls:
            await following(call)
        worker.host.add("a")
        worker.host.step()
        for call in calls:
            assert (await until(call, lambda update: update.HasField("cache"))).load.num_running == 1


async def test_steps_within_the_interval_share_an_update() -> None:
    async with watched_worker() as worker:
        call = worker.watch(interval_ms=200)
        await following(call)
        worker.host.add("a")
        started_s = asyncio.get_running_loop().time()
        num_updates, tokens_left = 0, 20
        while tokens_left > 1:
            worker.host.step()
            tokens_left = worker.host.scheduler.num_queued_tokens
        while (await following(call)).load.num_queued_tokens != tokens_left:
            num_updates += 1
        assert num_updates <= 1 + (asyncio.get_running_loop().time() - started_s) / 0.1


async def test_work_without_steps_is_reported_within_100_ms() -> None:
    async with watched_worker() as worker:
        call = worker.watch()
        await following(call)
        worker.host.add("a")
        worker.host.step()
        await until(call, lambda update: update.load.num_running == 1)
        worker.host.add("b")  # the request stays in the queue
        started_s = asyncio.get_running_loop().time()
        await until(call, lambda update: update.load.num_waiting == 1)
        assert asyncio.get_running_loop().time() - started_s < 5 * BUSY_INTERVAL_S


async def test_an_idle_workers_load_is_rarely_read() -> None:
    async with watched_worker() as worker:
        call = worker.watch()
        await following(call)
        num_stats = worker.host.num_stats
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await call.read()
        assert worker.host.num_stats == num_stats


async def test_draining_is_reported_at_once() -> None:
    async with watched_worker() as worker:
        call = worker.watch(interval_ms=60_000)
        assert not (await following(call)).draining
        worker.host.add("a")
        worker.host.step()  # the next update would be due in a minute
        worker.drain.begin()
        update = await following(call)
        assert (update.draining, update.drained) == (True, False)
        await worker.drain.run(60)
        update = await following(call)
        assert (update.draining, update.drained) == (True, True)
        await worker.undrain()
        update = await following(call)
        assert (update.draining, update.drained) == (False, False)


async def test_the_caller_of_a_drain_learns_of_an_undrain() -> None:
    async with watched_worker() as worker:
        with worker.drain.request():
            draining = asyncio.ensure_future(worker.drain_call())
            await worker.drain.wait_change(DrainState.SERVING)
            await worker.undrain()
            with pytest.raises(grpc.aio.AioRpcError, match="undrained before its drain had ended") as failure:
                await draining
        assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        worker.drain.begin(final=True)
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
            await worker.undrain()


async def test_commands_are_reported_once_to_their_router() -> None:
    async with watched_worker() as worker:
        call, other = worker.watch(router_id="r1"), worker.watch(router_id="r2")
        assert not (await following(call)).HasField("taken")  # the first load report includes all earlier commands
        assert not (await following(other)).HasField("taken")
        worker.counters.taken.note("r1", 5)
        worker.counters.taken.note("r1", 7)
        worker.counters.taken.note("r1", 0)  # from a router that does not count commands
        worker.counters.taken.note("r3", 6)  # without a watcher
        worker.host.add("a")
        worker.host.step()
        assert list((await until(call, lambda update: bool(update.taken.numbers))).taken.numbers) == [5, 7]
        mine = await following(other)
        assert mine.HasField("taken")
        assert not mine.taken.numbers
        worker.host.step()
        assert not (await following(call)).taken.numbers


async def test_a_router_that_does_not_count_commands_gets_none_reported() -> None:
    async with watched_worker() as worker:
        call = worker.watch()
        await following(call)
        worker.host.add("a")
        worker.host.step()
        assert not (await following(call)).HasField("taken")


def test_a_lost_watcher_leaves_no_state() -> None:
    counters = WorkerCounters()
    with counters.taken.watched("r") as first, counters.taken.watched("r") as second:
        counters.taken.note("r", 3)
        assert first == second == [3]
    with counters.taken.watched("r") as third:
        assert third == []


def test_the_reported_read_rate_follows_the_reads() -> None:
    reads = WorkerCounters().reads
    assert reads.bytes_per_s == 0
    reads.note(1000, 0.5)
    assert reads.bytes_per_s == 2000
    reads.note(0, 1.0)  # no bytes, no rate
    assert reads.bytes_per_s == 2000
    for _ in range(100):
        reads.note(500, 0.5)
    assert reads.bytes_per_s == pytest.approx(1000, rel=0.01)


async def test_a_large_snapshot_is_sent_in_pieces_without_a_wait_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.worker.cache_feed.MAX_MESSAGE_HASHES", 2)
    async with watched_worker() as worker:
        worker.host.add("a")
        for _ in range(3):
            worker.host.step()
        call = worker.watch(interval_ms=3_600_000)  # no update within an hour, unless events are pending
        first, second, third = [(await following(call)).cache for _ in range(3)]
        assert [(each.sequence, each.more) for each in (first, second, third)] == [(0, True), (1, True), (2, False)]
        assert first.stored + second.stored + third.stored == b"".join(hash_blocks(PROMPT, 4))


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -1.0])
async def test_a_drain_needs_a_finite_timeout(timeout_s: float) -> None:
    async with watched_worker() as worker:
        with pytest.raises(grpc.aio.AioRpcError, match="timeout_s is") as refused:
            await worker.drain_call(timeout_s)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert worker.drain.state is DrainState.SERVING

"""Changes of a worker's role over a real connection, on one engine."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

import baton.worker.drain
from baton.deployment.local.any_role_worker import BUILDERS
from baton.doctor.known_peers import KnownPeers
from baton.engine.config import EngineConfig
from baton.process.log_format import JsonLines, LogSource
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import Channels
from baton.worker.config import WorkerConfig
from baton.worker.drain import Drain
from baton.worker.life import Lives
from baton.worker.reporting import WorkerCounters
from baton.worker.role import RoleBuilders, WorkerCore, WorkerServices
from tests.checkpoints import make_checkpoint
from tests.unit.worker.test_expert_metrics import hosts

TIMEOUT_S = 60.0
PREFILL, DECODE, BOTH = worker_pb2.WORKER_ROLE_PREFILL, worker_pb2.WORKER_ROLE_DECODE, worker_pb2.WORKER_ROLE_BOTH


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("life") / "model")


class ServedLives:
    """The lives of a decode worker, and a connection to it."""

    def __init__(self, lives: Lives, channel: grpc.aio.Channel) -> None:
        self.lives = lives
        self.channel = channel
        self.worker = worker_pb2_grpc.WorkerStub(channel)
        self.changes: list[Sequence[str]] = []

    async def describe(self) -> worker_pb2.WorkerDescription:
        return await self.worker.Describe(worker_pb2.DescribeRequest())

    async def change(self, role: int, timeout_s: float = TIMEOUT_S) -> str:
        request = worker_pb2.ChangeRoleRequest(role=role, timeout_s=timeout_s)  # type: ignore[arg-type]  # also wrong ones
        return (await self.worker.ChangeRole(request)).incarnation

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """Keep the worker from being drained during a `with` block."""
        description = await self.describe()
        request = worker_pb2.LeaseRequest(incarnation=description.incarnation, fingerprint=description.fingerprint)
        call = worker_pb2_grpc.KVSourceStub(self.channel).Lease(request)
        assert isinstance(await call.read(), worker_pb2.LeaseEvent)
        yield
        call.cancel()


@asynccontextmanager
async def served_lives(
    model: Path, builders: RoleBuilders = BUILDERS, set_up: Callable[[WorkerConfig], WorkerConfig] = lambda given: given
) -> AsyncIterator[ServedLives]:
    config = set_up(WorkerConfig(role="decode", worker_id="w", engine=EngineConfig(model=str(model))))
    server, channels = grpc.aio.server(interceptors=[RefuseMalformed()]), Channels()

    async def note_change(names: Sequence[str]) -> None:
        served.changes.append(names)

    async with asyncio.timeout(TIMEOUT_S), hosts(model, None, ["first"]) as (host,):
        core = WorkerCore(config, host, channels, WorkerCounters(), Drain())
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        lives = Lives(core, builders, address, KnownPeers(None), note_change)
        server.add_generic_rpc_handlers((lives.table,))
        await server.start()
        lives.start()
        async with grpc.aio.insecure_channel(address) as channel:
            served = ServedLives(lives, channel)
            yield served
        await lives.begin_end()
        await lives.withdraw()
        await lives.close()
        await server.stop(None)
        await channels.close()


async def read_all(
    watch: grpc.aio.UnaryStreamCall[worker_pb2.WatchRequest, worker_pb2.WorkerUpdate],
    updates: list[worker_pb2.WorkerUpdate],
) -> None:
    """Append the updates until the stream's end. Raises its error."""
    while isinstance(update := await watch.read(), worker_pb2.WorkerUpdate):
        updates.append(update)


@pytest.fixture
def json_log() -> Iterator[JsonLines]:
    """The format of a worker's log in JSON, which this process writes during the test."""
    root, handler = logging.getLogger(), logging.StreamHandler(io.StringIO())
    handler.setFormatter(formatter := JsonLines(LogSource("w", "decode", "w")))
    root.addHandler(handler)
    yield formatter
    root.removeHandler(handler)


async def test_a_change_of_role_is_a_new_incarnation_with_the_same_pool(model: Path, json_log: JsonLines) -> None:
    async with served_lives(model) as served:
        first = await served.describe()
        assert await served.change(DECODE) == first.incarnation
        watch = served.worker.Watch(worker_pb2.WatchRequest(interval_ms=1))
        assert isinstance(await watch.read(), worker_pb2.WorkerUpdate)
        incarnation = await served.change(PREFILL)
        assert json_log.source == LogSource("w", "prefill", "w")
        second = await served.describe()
        assert (second.role, second.incarnation) == (PREFILL, incarnation)
        expected = worker_pb2.WorkerDescription()
        expected.CopyFrom(first)
        expected.role, expected.incarnation = PREFILL, incarnation
        expected.pooling.CopyFrom(second.pooling)
        if not second.HasField("pooling"):
            expected.ClearField("pooling")
        assert second == expected  # same address, pool and engine
        updates: list[worker_pb2.WorkerUpdate] = []
        with pytest.raises(grpc.aio.AioRpcError, match="has changed its role") as raised:
            await read_all(watch, updates)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert updates[-1].drained  # its router counts no loss
        assert {update.incarnation for update in updates} == {first.incarnation}
        assert (second.initial_role, first.initial_role) == (DECODE, DECODE)
        [names] = served.changes
        assert "baton.v1.Prefill" in names
        assert "baton.v1.Decode" not in names
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await worker_pb2_grpc.DecodeStub(served.channel).Recall(worker_pb2.RecallRequest())
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        stale = worker_pb2.LeaseRequest(incarnation=first.incarnation, fingerprint=first.fingerprint)
        with pytest.raises(grpc.aio.AioRpcError, match="has restarted"):
            await worker_pb2_grpc.KVSourceStub(served.channel).Lease(stale).read()


async def test_a_change_in_progress_excludes_another_and_ends_with_an_undrain(model: Path) -> None:
    async with served_lives(model) as served, served.lease():
        before = await served.describe()
        changing = asyncio.ensure_future(served.change(PREFILL))
        while not served.lives.current.core.drain.has_begun:
            await asyncio.sleep(0.01)
        for role in (PREFILL, BOTH, DECODE):
            with pytest.raises(grpc.aio.AioRpcError, match="is in progress") as raised:
                await served.change(role)
            assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await served.worker.Undrain(worker_pb2.UndrainRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="undrained") as raised:
            await changing
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert await served.describe() == before
        assert not served.lives.current.core.drain.has_begun


async def test_a_drained_worker_serves_again_in_the_new_role(model: Path) -> None:
    async with served_lives(model) as served:
        await served.worker.Drain(worker_pb2.DrainRequest())
        await served.change(BOTH)
        update = await served.worker.Watch(worker_pb2.WatchRequest()).read()
        assert not update.draining
        assert (await served.describe()).role == BOTH


async def test_a_second_life_is_drained_once_peers_have_read_what_they_leased_in_the_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baton.worker.drain, "PULL_S", 0.01)
    async with served_lives(model) as served:
        async with served.lease():
            await served.change(PREFILL, timeout_s=0.01)
            draining = asyncio.ensure_future(served.lives.current.core.drain.run(TIMEOUT_S, final=True))
            await asyncio.wait((draining,), timeout=0.05)
            assert not draining.done()
        assert await draining == 0


async def test_a_worker_whose_new_services_cannot_be_built_serves_its_former_role(model: Path) -> None:
    def fail(core: WorkerCore) -> WorkerServices:
        core.host.listen(lambda _: pytest.fail("a listener of a failed role was called"))
        raise RuntimeError("no such services today")

    async with served_lives(model, {**BUILDERS, "prefill": fail}) as served:
        before = await served.describe()
        with pytest.raises(grpc.aio.AioRpcError, match="serves decode as before: no such services today"):
            await served.change(PREFILL)
        after = await served.describe()
        assert (after.role, after.pool) == (DECODE, before.pool)
        assert after.incarnation != before.incarnation  # its streams were closed
        assert not served.lives.current.core.drain.has_begun
        await served.change(BOTH)
        assert (await served.describe()).role == BOTH


async def test_a_worker_that_can_serve_neither_role_fails(model: Path) -> None:
    def fail(core: WorkerCore) -> WorkerServices:
        raise RuntimeError("no such services today")

    builders = dict(BUILDERS)
    async with served_lives(model, builders) as served:
        builders |= {"prefill": fail, "decode": fail}
        with pytest.raises(grpc.aio.AioRpcError, match="no such services today"):
            await served.change(PREFILL)
        with pytest.raises(RuntimeError, match="no such services today"):
            await served.lives.failed


async def test_a_worker_that_shuts_down_keeps_its_role(model: Path) -> None:
    async with served_lives(model) as served:
        async with served.lease():
            changing = asyncio.ensure_future(served.change(PREFILL))
            while not served.lives.current.core.drain.has_begun:
                await asyncio.sleep(0.01)
            await served.lives.begin_end()
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
            await changing
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down and cannot change its role"):
            await served.change(PREFILL)
        assert (await served.describe()).role == DECODE


async def test_refused_changes(model: Path) -> None:
    def in_group(config: WorkerConfig) -> WorkerConfig:
        return replace(config, expert_parallel=2, rendezvous="127.0.0.1:1")

    async with served_lives(model, {"decode": BUILDERS["decode"]}) as served:
        with pytest.raises(grpc.aio.AioRpcError, match="for the role decode only; start it with `baton worker`"):
            await served.change(PREFILL)
        for role in (0, 17):
            with pytest.raises(grpc.aio.AioRpcError, match="must be prefill") as raised:
                await served.change(role)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError, match="timeout_s is -1"):
            await served.change(PREFILL, timeout_s=-1)
    async with served_lives(model, set_up=in_group) as served:
        with pytest.raises(grpc.aio.AioRpcError, match="rank of the expert group 'experts'"):
            await served.change(PREFILL)
        assert (await served.describe()).role == DECODE

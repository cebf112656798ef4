"""LoRA adapters of a worker: its calls, and its reports."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import grpc
import pytest

from baton.doctor.known_peers import KnownPeers
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.protos import rank_pb2, worker_pb2, worker_pb2_grpc
from baton.worker.adapters.base import NO_ADAPTERS
from baton.worker.adapters.worker_adapters import WorkerAdapters
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.reporting import WorkerCounters
from baton.worker.service import WorkerService
from tests.adapters import make_adapter
from tests.checkpoints import make_checkpoint
from tests.unit.engine.lora.lora_rig import random_tokens, request

TIMEOUT_S = 60.0


@dataclass
class ScriptedRank:
    """A second rank that responds to reads with `response`; without one it has read the same contents."""

    response: rank_pb2.AdapterRead | None = None
    digest: str = ""
    rank: int = 1
    dropped: list[int] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    async def read_adapter(self, number: int, name: str, path: str) -> rank_pb2.AdapterRead:
        self.read.append(name)
        return self.response or rank_pb2.AdapterRead(digest=self.digest)

    def drop_adapter(self, number: int) -> None:
        self.dropped.append(number)


@dataclass
class Worker:
    """A worker service on an engine with room for two adapters."""

    host: EngineHost
    adapters: WorkerAdapters
    follower: ScriptedRank
    stub: worker_pb2_grpc.WorkerStub

    async def load(self, name: str, path: Path) -> worker_pb2.Adapter:
        loaded = await self.stub.LoadAdapter(worker_pb2.LoadAdapterRequest(name=name, path=str(path)))
        return loaded.adapter

    async def unload(self, name: str) -> None:
        await self.stub.UnloadAdapter(worker_pb2.UnloadAdapterRequest(name=name))

    async def listed(self) -> list[worker_pb2.Adapter]:
        return list((await self.stub.ListAdapters(worker_pb2.ListAdaptersRequest())).adapters)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("worker") / "model")


@asynccontextmanager
async def worker(model: Path, *, has_follower: bool = False) -> AsyncIterator[Worker]:
    memory, server = SharedPool(), grpc.aio.server()
    config = EngineConfig(
        model=str(model), dtype="float32", kv_cache_memory_bytes=1 << 21, num_threads=1, enable_lora=True,
        max_loras=2, max_cpu_loras=2,
    )  # fmt: skip
    engine = await asyncio.to_thread(Engine, config, memory.allocate)
    transport = create_transport("shared_memory", PoolIdentity("w", engine.fingerprint), memory, "127.0.0.1")
    host, follower = EngineHost(engine, transport), ScriptedRank()
    host.start()
    adapters = WorkerAdapters(host, [follower] if has_follower else [])  # type: ignore[list-item]
    service = WorkerService(
        host, WorkerCounters(), Drain(), worker_pb2.WorkerDescription, dict, 1.0, KnownPeers(None), adapters=adapters
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(TIMEOUT_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Worker(host, adapters, follower, worker_pb2_grpc.WorkerStub(channel))
    finally:
        await server.stop(None)
        await host.stop()
        await transport.close()
        memory.close()


async def test_calls_and_reports(model: Path, tmp_path: Path) -> None:
    first, second = (make_adapter(model, tmp_path / name, ["q_proj"], seed=seed) for name, seed in (("1", 1), ("2", 2)))
    async with worker(model) as it:
        assert it.adapters.limits == worker_pb2.AdapterLimits(max_loras=2, max_lora_rank=16, max_cpu_loras=2)
        watch = it.stub.Watch(worker_pb2.WatchRequest(interval_ms=1))
        update = await watch.read()
        assert isinstance(update, worker_pb2.WorkerUpdate)
        assert not update.HasField("adapters")
        loaded = await it.load("a", first)
        assert (loaded.name, loaded.rank, len(loaded.digest)) == ("a", 4, 32)
        assert await it.load("a", first) == loaded
        reported = await reported_adapters(watch)
        assert list(reported.adapters) == [loaded]
        await it.load("b", first)
        loaded.is_resident = True
        assert [(each.name, each.digest, each.is_resident) for each in await it.listed()] == [
            ("a", loaded.digest, True),
            ("b", loaded.digest, True),
        ]
        assert not any(each.is_resident for each in it.adapters.list().adapters), "reports have the same list"
        for name, path, code in (
            ("a", second, grpc.StatusCode.ALREADY_EXISTS),
            ("c", tmp_path / "nowhere", grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await it.load(name, path)
            assert raised.value.code() is code
        await it.unload("a")
        await it.unload("b")
        with pytest.raises(grpc.aio.AioRpcError, match="no LoRA adapter 'a' is loaded") as raised:
            await it.unload("a")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        while (await reported_adapters(watch)).adapters:
            pass
        assert await it.listed() == []
        watch.cancel()


async def reported_adapters(
    watch: grpc.aio.UnaryStreamCall[worker_pb2.WatchRequest, worker_pb2.WorkerUpdate],
) -> worker_pb2.AdapterList:
    """Return the list in the next update that has one."""
    while isinstance(update := await watch.read(), worker_pb2.WorkerUpdate):
        if update.HasField("adapters"):
            return update.adapters
    raise AssertionError("the worker ended")


async def test_all_ranks_read_an_adapter_or_none_has_it(model: Path, tmp_path: Path) -> None:
    path = make_adapter(model, tmp_path / "a", ["q_proj"])
    async with worker(model, has_follower=True) as it:
        it.follower.response = rank_pb2.AdapterRead(error="it is not there")
        with pytest.raises(grpc.aio.AioRpcError, match="rank 1 of this worker: it is not there"):
            await it.load("a", path)
        it.follower.response = rank_pb2.AdapterRead(digest="00")
        with pytest.raises(grpc.aio.AioRpcError, match="has other contents on the node of rank 1 than on that"):
            await it.load("a", path)
        assert await it.listed() == []
        assert it.host.adapters.resident_numbers() == frozenset()
        it.follower.response = None
        it.follower.digest = it.host.adapters.read("a", path).info.digest
        await it.load("a", path)
        assert it.follower.dropped == [1, 2]
        running = request("r", random_tokens(20), "a")
        await it.host.call(lambda engine: engine.add(running))
        await it.unload("a")
        while not running.finish_reason:
            await it.host.call(lambda engine: engine.wake())
        while len(it.follower.dropped) < 3:
            await asyncio.sleep(0.01)
        assert it.follower.dropped == [1, 2, 4]


async def test_all_ranks_read_an_adapter_again(model: Path, tmp_path: Path) -> None:
    path = make_adapter(model, tmp_path / "a", ["q_proj"])
    async with worker(model, has_follower=True) as it:
        watch = it.stub.Watch(worker_pb2.WatchRequest(interval_ms=1))
        read = await asyncio.to_thread(it.host.adapters.read, "a", path)
        it.follower.digest = read.info.digest
        for name in ("a", "b", "c"):
            await it.load(name, path)
        assert [(each.name, each.is_resident) for each in await it.listed()] == [("a", False), ("b", True), ("c", True)]
        assert it.follower.dropped == [2]
        await completed(it, request("1", random_tokens(20), "a"))
        assert it.follower.read == ["a", "b", "c", "a"]
        assert it.follower.dropped == [2, 3]
        it.follower.digest = "00"
        errors = asyncio.Queue[Exception]()
        it.host.listen(
            lambda output: [errors.put_nowait(each.error) for each in output.outputs if each.error is not None]
        )
        await completed(it, request("2", random_tokens(20), "b"))
        error = str(await errors.get())  # outputs reach listeners after the request has ended
        assert "'b' has left memory, and cannot be read again: " in error
        assert "on the node of rank 1 than on that of rank 0" in error
        while [each.name for each in (await reported_adapters(watch)).adapters] != ["a", "c"]:
            pass
        watch.cancel()


async def test_adapters_are_read_one_after_the_other_during_a_step(model: Path, tmp_path: Path) -> None:
    """The next read does not wait for the end of the step, after which requests for the first adapter can start."""
    path = make_adapter(model, tmp_path / "a", ["q_proj"])
    async with worker(model, has_follower=True) as it:
        it.follower.digest = (await asyncio.to_thread(it.host.adapters.read, "a", path)).info.digest
        for name in ("a", "b", "c", "d"):
            await it.load(name, path)
        requests, step_ends = [request(name, random_tokens(20), name) for name in ("a", "b")], Event()

        def add_in_a_step(engine: Engine) -> None:
            for each in requests:
                engine.add(each)
            step_ends.wait(TIMEOUT_S)

        adding = it.host.call(add_in_a_step)
        try:
            async with asyncio.timeout(TIMEOUT_S / 4):
                while it.follower.read[4:] != ["a", "b"]:
                    await asyncio.sleep(0.01)
        finally:
            step_ends.set()
        await adding
        while not all(each.finish_reason for each in requests):
            await it.host.call(lambda engine: engine.wake())


async def completed(it: Worker, request: Request) -> None:
    """Run a request to its end."""
    await it.host.call(lambda engine: engine.add(request))
    while request.finish_reason is None:
        await it.host.call(lambda engine: engine.wake())


async def test_workers_without_adapters_refuse_them() -> None:
    assert NO_ADAPTERS.limits is None
    assert not NO_ADAPTERS.list().adapters
    for call in (NO_ADAPTERS.load("a", "b"), NO_ADAPTERS.unload("a")):
        with pytest.raises(Exception, match="start it with --enable-lora"):
            await call

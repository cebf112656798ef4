"""Calls over a real connection to a prefill worker whose expert-parallel group loses a rank."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.engine.request import Request
from baton.prefill_worker.service import PrefillService
from baton.process.progress import HEARTBEAT_S
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.peers import Channels
from baton.worker.base import NO_STORES, NoStores, Stores
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.reporting import WorkerCounters
from baton.worker.request_trace import NO_TRACING, WorkerTracing
from tests.checkpoints import make_checkpoint
from tests.unit.engine.group_rig import Group
from tests.unit.worker.test_expert_metrics import hosts
from tests.unit.worker.test_request_trace import PARENT, KeptSpans

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral") / "model")


@asynccontextmanager
async def serving(host: EngineHost) -> AsyncIterator[worker_pb2_grpc.PrefillStub]:
    async with serving_and_service(host) as (stub, _):
        yield stub


@asynccontextmanager
async def serving_and_service(
    host: EngineHost, stores: Stores = NO_STORES, tracing: WorkerTracing = NO_TRACING
) -> AsyncIterator[tuple[worker_pb2_grpc.PrefillStub, PrefillService]]:
    channels = Channels()
    service = PrefillService(host, channels, WorkerCounters(), Drain(), TIMEOUT_S, stores, tracing)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    worker_pb2_grpc.add_PrefillServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield worker_pb2_grpc.PrefillStub(channel), service
    finally:
        await server.stop(None)
        await channels.close()


def prompt_for(host: EngineHost) -> worker_pb2.PrefillRequest:
    return worker_pb2.PrefillRequest(
        request_id="a",
        token_ids=range(3, 43),
        num_prompt_tokens=40,
        sampling=common_pb2.SamplingParams(max_tokens=5),
        incarnation=host.pool.incarnation,
        fingerprint=host.fingerprint,
    )


async def wait_short(host: EngineHost) -> None:
    while not host.is_short_of_ranks:
        await asyncio.sleep(0.01)


async def read_to_end(call: grpc.aio.UnaryStreamCall[Any, worker_pb2.PrefillEvent]) -> None:
    """Raise the error with which the call ends."""
    while await call.read() is not grpc.aio.EOF:
        pass


async def read_to_silence(call: grpc.aio.UnaryStreamCall[Any, worker_pb2.PrefillEvent]) -> None:
    """Raise TimeoutError once keep-alives stop; some may have been in flight."""
    while True:
        async with asyncio.timeout(4 * HEARTBEAT_S):
            event = await call.read()
        assert isinstance(event, worker_pb2.PrefillEvent)
        assert not event.HasField("first_token")


async def test_a_service_that_closes_ends_its_calls_and_frees_their_blocks(tmp_path: Path) -> None:
    """Before its prompt is computed, and while its caller reads the blocks."""
    gate = threading.Event()
    model = make_checkpoint("qwen3", tmp_path / "model")
    async with (
        asyncio.timeout(TIMEOUT_S),
        hosts(model, None, ["alone"]) as (host,),
        serving_and_service(host) as (stub, service),
    ):
        leased = stub.Prefill(prompt_for(host))
        while not (await leased.read()).HasField("checksums"):
            pass
        host.call(lambda _: gate.wait())
        waiting = stub.Prefill(prompt_for(host))
        assert isinstance(await waiting.read(), worker_pb2.PrefillEvent)
        await service.close()
        gate.set()
        for call in (leased, waiting):
            with pytest.raises(grpc.aio.AioRpcError, match="ask another") as raised:
                await read_to_end(call)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        stats = await host.stats()
        assert stats.num_free_blocks == stats.num_blocks


class SlowStores(NoStores):
    """Stores with a lookup that goes on until `found` is set; then they have nothing."""

    def __init__(self) -> None:
        self.is_looking = asyncio.Event()
        self.found = asyncio.Event()

    async def find(self, request: Request) -> None:
        self.is_looking.set()
        await self.found.wait()
        request.receives_kv = True  # as `StoredFetch.add` does


async def test_a_service_that_closes_during_a_lookup_of_stored_kv_leaves_no_request(tmp_path: Path) -> None:
    """No service would end the receive of a request that enters the engine after the change of role."""
    model = make_checkpoint("qwen3", tmp_path / "model")
    stores = SlowStores()
    async with (
        asyncio.timeout(TIMEOUT_S),
        hosts(model, None, ["alone"]) as (host,),
        serving_and_service(host, stores) as (stub, service),
    ):
        call = stub.Prefill(prompt_for(host))
        await stores.is_looking.wait()
        await service.close()
        await host.call(lambda _: None)
        host.forget_listeners()
        stores.found.set()
        with pytest.raises(grpc.aio.AioRpcError, match="ask another") as raised:
            await read_to_end(call)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        stats = await host.stats()
        assert stats.num_free_blocks == stats.num_blocks


async def test_a_group_that_is_short_of_ranks_refuses_prompts(mixtral: Path) -> None:
    group = Group()
    async with (
        asyncio.timeout(TIMEOUT_S),
        hosts(mixtral, group, ["rank-0", "rank-1"], fewest=2) as (host, _),
        serving(host) as stub,
    ):
        group.set_members("rank-0")
        await wait_short(host)
        with pytest.raises(grpc.aio.AioRpcError, match="short of ranks") as raised:
            await anext(aiter(stub.Prefill(prompt_for(host))))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_group_that_is_short_of_ranks_sends_no_keep_alives(mixtral: Path) -> None:
    """Otherwise the decode worker would wait for the group instead of asking another prefill worker."""
    group, gate = Group(), threading.Event()
    async with (
        asyncio.timeout(TIMEOUT_S),
        hosts(mixtral, group, ["rank-0", "rank-1"], fewest=2) as (host, _),
        serving(host) as stub,
    ):
        host.call(lambda _: gate.wait())
        call = stub.Prefill(prompt_for(host))
        assert isinstance(await call.read(), worker_pb2.PrefillEvent)
        group.set_members("rank-0")
        gate.set()
        await wait_short(host)
        with pytest.raises(TimeoutError):
            await read_to_silence(call)
        call.cancel()


async def test_the_trace_of_a_refused_prompt_has_its_error(tmp_path: Path) -> None:
    tracer = KeptSpans()
    tracing = WorkerTracing("prefill-0", tracer)
    async with (
        asyncio.timeout(TIMEOUT_S),
        hosts(make_checkpoint("qwen3", tmp_path / "model"), None, ["alone"]) as (host,),
        serving_and_service(host, tracing=tracing) as (stub, _),
    ):
        prompt = prompt_for(host)
        prompt.num_prompt_tokens = 1 << 20
        prompt.token_ids.extend([5] * ((1 << 20) - len(prompt.token_ids)))
        with pytest.raises(grpc.aio.AioRpcError):
            await read_to_end(stub.Prefill(prompt, metadata=PARENT.metadata()))
    [recorded] = tracer.exported
    assert recorded.root.error == "InvalidRequest"

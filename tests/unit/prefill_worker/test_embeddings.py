"""Calls for embeddings over a real connection to a prefill worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from baton.prefill_worker.embeddings import MAX_INPUTS, EmbeddingService
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import is_refusal
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.reporting import WorkerCounters
from tests.checkpoints import make_checkpoint
from tests.embedding_models import EmbeddingOracle, Vector, floats, make_embedding_model
from tests.unit.engine.group_rig import Group
from tests.unit.engine.pooling.test_pooled_requests import ATOL, random_tokens
from tests.unit.worker.test_expert_metrics import hosts

TIMEOUT_S = 60.0


class Worker:
    """A served engine, and a stub of it."""

    def __init__(
        self,
        host: EngineHost,
        channel: grpc.aio.Channel,
        counters: WorkerCounters,
        drain: Drain,
        service: EmbeddingService,
    ) -> None:
        self.host = host
        self.service = service
        self.counters = counters
        self.drain = drain
        self._stub = worker_pb2_grpc.EmbeddingsStub(channel)

    def call(
        self, inputs: Sequence[Sequence[int]], **fields: object
    ) -> "grpc.aio.UnaryStreamCall[worker_pb2.EmbedRequest, worker_pb2.EmbedEvent]":
        """Begin a call."""
        given: dict[str, object] = {"incarnation": self.host.pool.incarnation, "fingerprint": self.host.fingerprint}
        request = worker_pb2.EmbedRequest(
            inputs=[worker_pb2.EmbedInput(token_ids=each) for each in inputs],
            **(given | fields),  # type: ignore[arg-type]  # a test's own choice of fields
        )
        return self._stub.Embed(request)

    async def embed(self, inputs: Sequence[Sequence[int]], **fields: object) -> dict[int, Vector]:
        """Return the embeddings of a call by index."""
        events = [event async for event in self.call(inputs, **fields)]
        found = [event.embedding for event in events if event.HasField("embedding")]
        assert len({each.index for each in found}) == len(found)
        return {each.index: floats(each.vector) for each in found}

    async def wait_idle(self) -> None:
        """Wait until nothing is left of any call. Raises TimeoutError."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                stats = await self.host.stats()
                is_free = stats.num_free_blocks == stats.num_blocks
                if is_free and not stats.num_running and not stats.num_waiting and not self.drain.num_requests:
                    break
                await asyncio.sleep(0.01)
        assert self.counters.num_embeddings == 0
        await self.host.call(lambda engine: engine.check_integrity())


@asynccontextmanager
async def serving(model: Path, num_ranks: int = 1) -> AsyncIterator[Worker]:
    """Serve a model, with its experts on several ranks if `num_ranks` is above 1."""
    group = Group() if num_ranks > 1 else None
    names = [f"rank-{rank}" for rank in range(num_ranks)]
    async with asyncio.timeout(TIMEOUT_S), hosts(model, group, names) as [host, *_]:
        counters, drain = WorkerCounters(), Drain()
        server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
        service = EmbeddingService(host, counters, drain)
        worker_pb2_grpc.add_EmbeddingsServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Worker(host, channel, counters, drain, service)
        finally:
            await server.stop(None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_embedding_model("qwen3", tmp_path_factory.mktemp("embedding") / "model", "last", is_matryoshka=True)


async def test_inputs_of_a_call_are_computed_together(model: Path) -> None:
    oracle = EmbeddingOracle(model, "last")
    inputs = [random_tokens(length, length) for length in (1, 5, 300, 64)]
    async with serving(model) as worker:
        vectors = await worker.embed(inputs, router_id="r", number=3)
        for place, token_ids in enumerate(inputs):
            np.testing.assert_allclose(vectors[place], oracle.embedding(token_ids), atol=ATOL, rtol=0)
        [whole] = (await worker.embed(inputs[:1], normalizes=False)).values()
        np.testing.assert_allclose(whole, oracle.pooled(inputs[0]), atol=1e-4, rtol=0)
        await worker.wait_idle()


async def read_to_end(call: "grpc.aio.UnaryStreamCall[worker_pb2.EmbedRequest, worker_pb2.EmbedEvent]") -> None:
    """Raise the error with which the call ends."""
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_service_that_closes_ends_its_calls(model: Path) -> None:
    gate = threading.Event()
    async with serving(model) as worker:
        worker.host.call(lambda _: gate.wait())
        call = worker.call([random_tokens(300, 1), random_tokens(5, 2)])
        assert isinstance(await call.read(), worker_pb2.EmbedEvent)  # a keep-alive
        worker.service.close()
        gate.set()
        with pytest.raises(grpc.aio.AioRpcError, match="ask another") as raised:
            await read_to_end(call)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        await worker.wait_idle()


@pytest.mark.parametrize("kind", ["last", "mean"])
async def test_a_rank_of_an_expert_parallel_group_makes_embeddings(kind: str, tmp_path: Path) -> None:
    model = make_embedding_model("mixtral", tmp_path / "model", kind)
    inputs = [random_tokens(length, length) for length in (1, 40, 300)]
    async with serving(model) as alone, serving(model, num_ranks=2) as rank:
        expected = await alone.embed(inputs)
        vectors = await rank.embed(inputs)
        for place, token_ids in enumerate(inputs):
            np.testing.assert_array_equal(vectors[place], expected[place])
            oracle = EmbeddingOracle(model, kind).embedding(token_ids)
            np.testing.assert_allclose(vectors[place], oracle, atol=ATOL, rtol=0)
        await rank.wait_idle()


async def test_a_cancelled_call_leaves_nothing(model: Path) -> None:
    async with serving(model) as worker:
        for delay_s in (0.0, 0.001, 0.02, 0.1):
            call = worker.call([random_tokens(400, seed) for seed in range(MAX_INPUTS)])
            await asyncio.sleep(delay_s)
            call.cancel()
        await worker.wait_idle()
        assert len(await worker.embed([[3, 4]])) == 1


@pytest.mark.parametrize(
    ("inputs", "fields", "code", "reason"),
    [
        ([], {}, grpc.StatusCode.INVALID_ARGUMENT, "0 inputs, but must have from 1"),
        ([[3]] * (MAX_INPUTS + 1), {}, grpc.StatusCode.INVALID_ARGUMENT, "65 inputs"),
        ([[3], []], {}, grpc.StatusCode.INVALID_ARGUMENT, "at least one token"),
        ([[3], [100_000]], {}, grpc.StatusCode.INVALID_ARGUMENT, "out of range"),
        ([[3] * 513], {}, grpc.StatusCode.INVALID_ARGUMENT, "513 tokens, but the context has"),
        ([[3]], {"dimensions": 0}, grpc.StatusCode.INVALID_ARGUMENT, "dimensions is 0"),
        ([[3]], {"incarnation": "other"}, grpc.StatusCode.FAILED_PRECONDITION, "restarted"),
        ([[3]], {"fingerprint": "other"}, grpc.StatusCode.FAILED_PRECONDITION, "fingerprint"),
    ],
)
async def test_invalid_calls_are_refused(
    model: Path, inputs: list[list[int]], fields: dict[str, object], code: grpc.StatusCode, reason: str
) -> None:
    async with serving(model) as worker:
        with pytest.raises(grpc.aio.AioRpcError, match=reason) as raised:
            await worker.embed(inputs, **fields)
        assert raised.value.code() is code
        await worker.wait_idle()


async def test_a_draining_worker_finishes_its_calls_and_takes_no_more(model: Path) -> None:
    async with serving(model) as worker:
        running = asyncio.ensure_future(worker.embed([random_tokens(200, seed) for seed in range(20)]))
        while not worker.drain.num_requests:
            await asyncio.sleep(0.001)
        draining = asyncio.ensure_future(worker.drain.run(TIMEOUT_S))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError, match="draining") as caught:
            await worker.embed([[3]])
        assert is_refusal(caught.value)
        assert len(await running) == 20
        assert await draining == 0


async def test_a_model_without_pooling_embeds_nothing(tmp_path: Path) -> None:
    async with serving(make_checkpoint("qwen3", tmp_path / "model")) as worker:
        with pytest.raises(grpc.aio.AioRpcError, match="makes no embeddings"):
            await worker.embed([[3]])

"""The KVCache service of a worker, over real gRPC on a simulated engine and on one that has ended."""

from pathlib import Path

import grpc
import pytest

from baton.engine.kv.block_hash import hash_blocks
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.worker.kv.cache_control import KVCacheService
from tests.checkpoints import make_checkpoint
from tests.unit.simulation.served import client_of, sampling, served
from tests.unit.worker.test_expert_metrics import hosts

PROMPT = list(range(300, 340))  # 10 blocks


async def test_calls_with_invalid_fields_are_refused_by_name() -> None:
    async with served("decode") as (worker,), client_of(worker) as client:
        await client.generate(PROMPT, sampling(2))
        stub = worker_pb2_grpc.KVCacheStub(worker.remote.channel)
        good = worker_pb2.PinRequest(
            name="a",
            block_hashes=b"".join(hash_blocks(PROMPT, 4)),
            ttl_s=10,
            incarnation=worker.simulated.description.incarnation,
        )
        for field, value, text in (
            ("name", "", "a name is needed"), ("name", "x" * 300, "at most 256 characters"), ("ttl_s", 0, "ttl_s is 0"),
            ("ttl_s", float("nan"), "ttl_s is nan"), ("max_share", 2, "max_share is 2"),
            ("block_hashes", b"short", "has 5 bytes"), ("block_hashes", b"", "has 0 bytes"),
        ):  # fmt: skip
            bad = worker_pb2.PinRequest()
            bad.CopyFrom(good)
            setattr(bad, field, value)
            with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
                await stub.Pin(bad)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await stub.Pin(good)).num_tokens == 40
        for field, value, code in (
            ("incarnation", "other", grpc.StatusCode.FAILED_PRECONDITION),
            ("block_hashes", bytes(16), grpc.StatusCode.FAILED_PRECONDITION),
            ("max_share", 0.001, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            bad = worker_pb2.PinRequest()
            bad.CopyFrom(good)
            setattr(bad, field, value)
            bad.name = bad.name if field == "incarnation" else "b"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Pin(bad)
            assert caught.value.code() is code
        [pin] = (await stub.ListPins(worker_pb2.ListPinsRequest())).pins
        assert (pin.name, pin.num_tokens, pin.num_blocks, pin.num_bytes) == ("a", 40, 10, 10_000)
        assert 0 < pin.ttl_s <= 10
        assert (await stub.Unpin(worker_pb2.UnpinRequest(name="a", deleted_s=100.0))).was_pinned
        assert not (await stub.Unpin(worker_pb2.UnpinRequest(name="a"))).was_pinned
        good.created_s = 99.0
        with pytest.raises(grpc.aio.AioRpcError, match="the pin was deleted") as caught:
            await stub.Pin(good)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await stub.Clear(worker_pb2.ClearRequest())).num_blocks >= 10
        with pytest.raises(grpc.aio.AioRpcError, match="there is no tier 'disk'; the worker has kv_cache"):
            await stub.Clear(worker_pb2.ClearRequest(tier="disk"))


async def test_an_engine_that_has_ended_pins_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, news = grpc.aio.server(), list[None]()
    async with hosts(make_checkpoint("qwen3", tmp_path / "model"), None, ["alone"]) as (host,):
        service = KVCacheService(host, 0.25, lambda: news.append(None))
        worker_pb2_grpc.add_KVCacheServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await host.stop()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = worker_pb2_grpc.KVCacheStub(channel)
            for call in (stub.ListPins(worker_pb2.ListPinsRequest()), stub.Clear(worker_pb2.ClearRequest())):
                with pytest.raises(grpc.aio.AioRpcError, match="the engine has ended") as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await server.stop(None)
    assert not news
    assert not [
        record for record in caplog.records if record.levelname == "ERROR" and record.name.startswith(("baton", "grpc"))
    ]

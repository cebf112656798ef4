"""Leases of a worker whose engine has ended."""

from pathlib import Path

import grpc
import pytest

from baton.protos import worker_pb2, worker_pb2_grpc
from baton.worker.drain import Drain
from baton.worker.kv.source import KVSourceService
from tests.checkpoints import make_checkpoint
from tests.unit.worker.test_expert_metrics import hosts


async def test_an_engine_that_has_ended_grants_no_lease(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that leaves its group serves for a moment longer than its engine."""
    model = make_checkpoint("qwen3", tmp_path / "model")
    server = grpc.aio.server()
    async with hosts(model, None, ["alone"]) as (host,):
        worker_pb2_grpc.add_KVSourceServicer_to_server(KVSourceService(host, Drain()), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await host.stop()
        request = worker_pb2.LeaseRequest(incarnation=host.pool.incarnation, fingerprint=host.fingerprint)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="the engine has ended") as caught:
                await worker_pb2_grpc.KVSourceStub(channel).Lease(request).read()
        await server.stop(None)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert not [record for record in errors if record.name.startswith("baton")]  # not those of other tests' threads

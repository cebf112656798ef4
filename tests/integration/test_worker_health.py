"""Health status of workers over grpc.health.v1."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.worker.health import LIVENESS
from tests.integration.workers_view import workers

SERVICES = {"prefill": "baton.v1.Prefill", "decode": "baton.v1.Decode"}


async def test_a_worker_serves_its_roles_services_and_no_others(cluster_url: str) -> None:
    for worker in await workers(cluster_url):
        async with grpc.aio.insecure_channel(worker["address"]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            role = worker["role"]
            for service in ("", LIVENESS, "baton.v1.Worker", "baton.v1.KVSource", SERVICES[role]):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            other = SERVICES["decode" if role == "prefill" else "prefill"]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(health_pb2.HealthCheckRequest(service=other))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

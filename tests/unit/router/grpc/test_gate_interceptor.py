"""Calls without a key are rejected before their message is read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from baton.protos.router_pb2 import GenerateRequest, GenerateResponse
from baton.protos.router_pb2_grpc import InferenceServicer, InferenceStub, add_InferenceServicer_to_server
from baton.router.auth.api_key import hidden, unnamed_key
from baton.router.auth.client import Gate, KeyRing
from baton.router.grpc.auth_interceptor import GateInterceptor
from tests.unit.router.api_keys import bearer

KEY = "sk-a"


class Echo(InferenceServicer):
    """Return its argument."""

    async def Generate(self, request: GenerateRequest, context: Any) -> AsyncIterator[GenerateResponse]:  # noqa: N802
        yield GenerateResponse(text=request.text)


@asynccontextmanager
async def served() -> AsyncIterator[grpc.aio.Channel]:
    gate = Gate(KeyRing([unnamed_key(hidden(KEY))], None, None))
    options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1000))
    server = grpc.aio.server(interceptors=[GateInterceptor(gate, "baton.v1.Inference")], options=options)
    add_InferenceServicer_to_server(Echo(), server)
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


async def test_requests_without_a_key_are_rejected_whatever_they_send() -> None:
    async with served() as channel:
        for text in ("a", "a" * 100_000):  # too large to be read: that it is not even seen shows that nothing was
            for metadata in ((), tuple(bearer("other").items())):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await anext(aiter(InferenceStub(channel).Generate(GenerateRequest(text=text), metadata=metadata)))
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_requests_with_a_key_are_served_and_health_needs_none() -> None:
    async with served() as channel:
        metadata = tuple(bearer(KEY).items())
        call = InferenceStub(channel).Generate(GenerateRequest(text="a"), metadata=metadata)
        assert [response.text async for response in call] == ["a"]
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

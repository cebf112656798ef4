"""A malformed request is INVALID_ARGUMENT in every kind of method."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.malformed import RefuseMalformed

NONE = b"\xff\xff"


class Echo(worker_pb2_grpc.DecodeServicer, worker_pb2_grpc.WorkerServicer):
    """A service that echoes."""

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RouterMessage], context: Any
    ) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """Respond once per message."""
        async for message in request_iterator:
            yield worker_pb2.WorkerMessage(deltas=[worker_pb2.RequestDelta(request_id=message.hello.router_id)])

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.WorkerDescription:
        """Respond once."""
        return worker_pb2.WorkerDescription(worker_id="echo")

    async def Watch(  # noqa: N802
        self, request: worker_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Respond twice."""
        for number in range(2):
            yield worker_pb2.WorkerUpdate(incarnation=f"{number}")


@asynccontextmanager
async def echo() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[RefuseMalformed()])
    worker_pb2_grpc.add_DecodeServicer_to_server(Echo(), server)
    worker_pb2_grpc.add_WorkerServicer_to_server(Echo(), server)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.mark.parametrize(
    "method", ["/baton.v1.Worker/Describe", "/baton.v1.Worker/Watch", "/grpc.health.v1.Health/Check"]
)
async def test_a_malformed_request_is_refused(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with echo() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_stream(method)(NONE).read()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a message of this method" in str(raised.value.details())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_stream_ends_before_a_malformed_request(caplog: pytest.LogCaptureFixture) -> None:
    hello = worker_pb2.RouterMessage(hello=worker_pb2.Hello(router_id="a")).SerializeToString()
    async with echo() as channel:
        call = channel.stream_stream("/baton.v1.Decode/Attach")()
        for message in (hello, NONE):
            await call.write(message)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream may have ended
            await call.write(hello)
        assert worker_pb2.WorkerMessage.FromString(await call.read()).deltas[0].request_id == "a"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a message of this method" in str(raised.value.details())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_handlers_that_are_replaced_are_checked_too() -> None:
    class Switched(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return current

    def handler(answer: bytes) -> Any:
        async def behavior(request: Any, context: Any) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(behavior, worker_pb2.DescribeRequest.FromString)

    server = grpc.aio.server(interceptors=[RefuseMalformed()])
    server.add_generic_rpc_handlers((Switched(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for answer in (b"first", b"second"):
            current = handler(answer)
            assert await channel.unary_unary("/any/Method")(b"") == answer
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/any/Method")(NONE)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await server.stop(None)


async def test_well_formed_messages_are_passed() -> None:
    async with echo() as channel:
        worker = worker_pb2_grpc.WorkerStub(channel)
        assert (await worker.Describe(worker_pb2.DescribeRequest())).worker_id == "echo"
        updates = [update.incarnation async for update in worker.Watch(worker_pb2.WatchRequest())]
        assert updates == ["0", "1"]
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        async for status in health.Watch(health_pb2.HealthCheckRequest()):
            assert status.status == health_pb2.HealthCheckResponse.SERVING
            break
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/baton.v1.Worker/Nothing")(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED

"""The stream between a router and a decode worker, over a real connection."""

import asyncio

import grpc
import pytest

from baton.decode_worker import service as router_session
from baton.decode_worker.service import DecodeService, RouterSession
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS

TIMEOUT_S = 30.0
DELTA = worker_pb2.RequestDelta(request_id="a", token_ids=[1 << 30] * 100_000)  # 500 KB


class RecordedRequests:
    """A request handler that computes nothing."""

    def __init__(self) -> None:
        self.submitted: asyncio.Queue[tuple[str, RouterSession]] = asyncio.Queue()
        self.aborted = asyncio.Event()

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        self.submitted.put_nowait((command.request_id, session))

    def abort(self, request_id: str, session: RouterSession) -> None:
        raise AssertionError("no request is aborted by its name")

    def abort_all(self, session: RouterSession) -> None:
        self.aborted.set()

    def recall(self, resume_key: bytes) -> worker_pb2.RecalledOutput | None:
        return None


async def test_the_requests_of_a_router_that_does_not_read_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router_session, "MAX_PENDING_BYTES", 2 << 20)
    requests = RecordedRequests()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    worker_pb2_grpc.add_DecodeServicer_to_server(DecodeService(requests, "life"), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
        ):
            call = worker_pb2_grpc.DecodeStub(channel).Attach()  # type: ignore[call-arg]  # as in AttachStream
            await call.write(worker_pb2.RouterMessage(hello=worker_pb2.Hello(incarnation="life")))
            await call.read()
            await call.write(worker_pb2.RouterMessage(generate=[worker_pb2.GenerateCommand(request_id="a")]))
            _, session = await requests.submitted.get()
            while not requests.aborted.is_set():  # more than the connection buffers
                session.add(DELTA)
                await asyncio.sleep(0)
            code = grpc.StatusCode.OK
            try:
                await call.write(worker_pb2.RouterMessage(generate=[worker_pb2.GenerateCommand(request_id="b")]))
                while await call.read() is not grpc.aio.EOF:  # the router reads again and sees the end of the stream
                    pass
            except grpc.aio.AioRpcError:  # the stream had ended before the command was written
                code = grpc.StatusCode.INTERNAL
            assert await call.code() is code
    finally:
        await server.stop(None)
    assert requests.submitted.empty(), "a session that has ended takes no commands"
    assert [record.message for record in caplog.records] == ["closing session 1: its router does not read its messages"]

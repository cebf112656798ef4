"""Clients that read a large response slowly get all of it; those that read nothing, or have all of it, hold nothing."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.responses import Response

from baton.router.admission import unread_output as unread
from baton.router.admission.unread_output import UnreadLimits, UnreadMetrics, UnreadOutput
from baton.router.generation import CompletionDelta
from baton.router.http import post_protocol, stall_watch
from baton.router.http import server as http_server
from baton.router.http.app import HttpApp
from baton.router.http.certificate import Certificate, HttpsFiles
from baton.router.http.event_stream import EventStream
from baton.router.http.exchange import Exchange
from baton.router.http.paced_response import PacedResponse
from baton.router.http.server import HttpServer
from tests.marks import slow_case

NUM_BYTES = 24 << 20  # more than the kernel buffers
NUM_EVENTS = 12
SHORT_S = 0.2
SLOW_S = 1.4  # longer than a connection without a request is kept, and then than one that takes nothing
TOO_SLOW_S = 8.0
DEADLINE_S = 60.0
CLOSE = (b"connection: close",)
PACED = b"GET /paced HTTP/1.1\r\nhost: x\r\n%b\r\n"
PAGE = b"GET /page HTTP/1.1\r\nhost: x\r\n%b\r\n"
REQUEST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n%b\r\n{}"
KEPT_AND_CLOSED = pytest.mark.parametrize(
    ("headers", "is_tls"), [((), True), (CLOSE, False), slow_case((), False), slow_case(CLOSE, True)]
)


class LargeAnswer:
    """A route that responds at once, whole or in two events."""

    max_body_bytes = 1 << 20

    def __init__(self, is_streamed: bool) -> None:
        self._is_streamed = is_streamed

    def is_authorized(self, exchange: Exchange) -> bool:
        return True

    async def serve(self, exchange: Exchange) -> None:
        if not self._is_streamed:
            await exchange.respond(200, b"x" * NUM_BYTES)
            return
        await exchange.begin_events({}, EventStream(exchange, lambda delta: delta.text.encode()))
        await exchange.send_events(b"x" * NUM_BYTES)
        await exchange.send_events(b"x", last=True)


class SlowStream(LargeAnswer):
    """A route with a slow stream of events."""

    async def serve(self, exchange: Exchange) -> None:
        stream = EventStream(exchange, lambda delta: delta.text.encode())
        await exchange.begin_events({}, stream)
        for number in range(NUM_EVENTS):
            await asyncio.sleep(SHORT_S / 2)
            await stream.add(CompletionDelta(0, text=f"{number};"))
        await exchange.send_events(b"end", last=True)


class Served:
    """A server of large responses, with its address and options."""

    def __init__(self, server: HttpServer, listener: socket.socket, trust: ssl.SSLContext | None) -> None:
        self.server = server
        self.listener = listener
        self._trust = trust

    async def ask(self, *headers: bytes, request: bytes = REQUEST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.connect(self.listener.getsockname())
        name = "127.0.0.1" if self._trust is not None else None
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=self._trust, server_hostname=name, limit=1 << 12, ssl_shutdown_timeout=1 if name else None
        )
        writer.write(request % b"".join(header + b"\r\n" for header in headers))
        return reader, writer


def unread_output(router_bytes: int = 1 << 30) -> UnreadOutput:
    limits = UnreadLimits(request_bytes=1 << 30, key_bytes=1 << 30, router_bytes=router_bytes)
    return UnreadOutput(limits, UnreadMetrics(CollectorRegistry(), "model"))


def large_pages(output: UnreadOutput) -> FastAPI:
    app = FastAPI()

    @app.get("/paced")
    async def paced() -> Response:
        return PacedResponse(b"x" * NUM_BYTES, "text/plain", output, None)

    @app.get("/page")
    async def page() -> Response:
        return Response(b"x" * NUM_BYTES)

    return app


@asynccontextmanager
async def serving(
    directory: Path,
    is_tls: bool,
    is_streamed: bool = False,
    route: LargeAnswer | None = None,
    router_bytes: int = 1 << 30,
) -> AsyncIterator[Served]:
    certificate, trust = None, None
    if is_tls:
        authority = trustme.CA()
        leaf = authority.issue_cert("127.0.0.1")
        cert, key = directory / "cert.pem", directory / "key.pem"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        certificate = Certificate(HttpsFiles(str(cert), str(key)))
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(trust)
    listener = socket.create_server(("127.0.0.1", 0))
    routes = {"/x": route or LargeAnswer(is_streamed)}
    output = unread_output(router_bytes)
    app = HttpApp(routes, large_pages(output), output)  # type: ignore[arg-type]  # a route of the test's own
    server = HttpServer(app, certificate)
    task = asyncio.create_task(server.serve([listener]))
    await server.listening.wait()
    try:
        yield Served(server, listener, trust)
    finally:
        server.should_exit = True
        await task


async def read_slowly(reader: asyncio.StreamReader, over_s: float) -> int:
    """Read the response evenly over at least this time; return the bytes of its body."""
    await reader.readuntil(b"\r\n\r\n")
    num_bytes, start_s = 0, asyncio.get_running_loop().time()
    while num_bytes < NUM_BYTES:
        due_s = start_s + over_s * num_bytes / NUM_BYTES
        await asyncio.sleep(due_s - asyncio.get_running_loop().time())
        part = await reader.read(1 << 16)
        if not part:
            break
        num_bytes += len(part)
    return num_bytes


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 1)
    monkeypatch.setattr(post_protocol, "LINGER_S", SHORT_S)
    monkeypatch.setattr(stall_watch, "CHECK_INTERVAL_S", SHORT_S)
    monkeypatch.setattr(unread, "STALL_S", 2 * SHORT_S)


@KEPT_AND_CLOSED
async def test_a_slow_client_gets_the_whole_answer(tmp_path: Path, is_tls: bool, headers: tuple[bytes, ...]) -> None:
    async with serving(tmp_path, is_tls) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask(*headers)
        assert await read_slowly(reader, over_s=SLOW_S) == NUM_BYTES
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [slow_case(False), True])
async def test_a_slow_client_gets_the_whole_stream(tmp_path: Path, is_tls: bool) -> None:
    async with serving(tmp_path, is_tls, is_streamed=True) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask()
        assert await read_slowly(reader, over_s=SLOW_S) >= NUM_BYTES
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [slow_case(False), True])
async def test_a_slow_client_gets_the_whole_answer_of_a_server_that_leaves(tmp_path: Path, is_tls: bool) -> None:
    async with serving(tmp_path, is_tls) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask()
        reading = asyncio.create_task(read_slowly(reader, over_s=SLOW_S))
        await until_connected(served.server)
        await served.server.leave(served.listener, DEADLINE_S)
        assert await reading == NUM_BYTES
        writer.transport.abort()


@KEPT_AND_CLOSED
async def test_a_client_that_reads_nothing_is_disconnected(
    tmp_path: Path, is_tls: bool, headers: tuple[bytes, ...]
) -> None:
    async with serving(tmp_path, is_tls) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask(*headers)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a read transport too
        assert served.server.server_state.connections
        while served.server.server_state.connections:
            await asyncio.sleep(0.01)
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_the_drain_ignores_clients_that_have_their_response(tmp_path: Path, is_tls: bool) -> None:
    async with serving(tmp_path, is_tls) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask(b"connection: close")
        assert await read_slowly(reader, over_s=0) == NUM_BYTES
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # so it never says that it is done
        while served.server.server_state.connections:
            await asyncio.sleep(0.01)
        writer.transport.abort()


@pytest.mark.parametrize(
    ("is_streamed", "is_tls"), [(False, False), (True, True), slow_case(False, True), slow_case(True, False)]
)
async def test_a_client_below_the_minimum_rate_is_disconnected(
    tmp_path: Path, is_tls: bool, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "LEAST_BYTES_PER_S", 1 << 30)  # it takes some all the time
    async with serving(tmp_path, is_tls, is_streamed) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask()
        with suppress(ConnectionError):
            assert await read_slowly(reader, over_s=TOO_SLOW_S) < NUM_BYTES
        assert not served.server.server_state.connections
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [False, slow_case(True)])
async def test_a_slow_stream_has_no_minimum_rate_if_the_client_keeps_up(
    tmp_path: Path, is_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "LEAST_BYTES_PER_S", 1 << 30)
    async with serving(tmp_path, is_tls, route=SlowStream(True)) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask()
        answer = await reader.readuntil(b"end\r\n0\r\n\r\n")
        assert all(b"%d;" % number in answer for number in range(NUM_EVENTS))
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [slow_case(False), True])
async def test_a_client_that_does_not_read_a_large_page_is_disconnected(tmp_path: Path, is_tls: bool) -> None:
    async with serving(tmp_path, is_tls) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask(request=PAGE)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a read transport too
        while served.server.server_state.connections:
            await asyncio.sleep(0.01)
        writer.transport.abort()


async def until_connected(server: HttpServer) -> None:
    while not server.server_state.connections:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_tls", [False, slow_case(True)])
async def test_a_slow_client_gets_the_whole_paced_response(tmp_path: Path, is_tls: bool) -> None:
    async with serving(tmp_path, is_tls) as served, asyncio.timeout(DEADLINE_S):
        reader, writer = await served.ask(request=PACED)
        assert await read_slowly(reader, SLOW_S) == NUM_BYTES
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_paced_responses_count_towards_the_routers_bound(
    tmp_path: Path, is_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "STALL_S", DEADLINE_S)
    async with serving(tmp_path, is_tls, router_bytes=NUM_BYTES * 3 // 2) as served, asyncio.timeout(DEADLINE_S):
        first, first_writer = await served.ask(request=PACED)
        await first.readuntil(b"\r\n\r\n")  # it has most of the room now
        second, second_writer = await served.ask(request=PACED)
        assert len(await second.read()) < NUM_BYTES
        assert len(await first.readexactly(NUM_BYTES)) == NUM_BYTES
        for writer in (first_writer, second_writer):
            writer.transport.abort()

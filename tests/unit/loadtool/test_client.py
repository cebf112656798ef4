"""The HTTP client against real sockets."""

import asyncio
import ssl
from collections.abc import Mapping
from time import perf_counter

import pytest
import trustme

from baton.loadtool import client as client_module
from baton.loadtool.client import HttpClient
from baton.loadtool.target import Target
from tests.unit.loadtool.scripted_server import EVENT_HEAD, LAST_CHUNK, ReceivedRequest, chunk, scripted_server

TARGET = Target(base_url="http://127.0.0.1:1", model="m")
PAYLOAD = TARGET.payload(b'{"a": 1}')


class Kept:
    """A reader that keeps the whole response."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[tuple[bytes, float]] = []

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, dict(headers)

    def body(self, piece: bytes, now_s: float) -> None:
        self.pieces.append((piece, now_s))

    @property
    def content(self) -> bytes:
        return b"".join(piece for piece, _ in self.pieces)


def client_of(port: int, timeout_s: float = 10.0) -> HttpClient:
    return HttpClient("127.0.0.1", port, None, timeout_s)


async def request_once(answer: bytes, *, ends: bool = False) -> Kept:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if ends:
            writer.close()

    async with scripted_server(script) as server:
        client, kept = client_of(server.port), Kept()
        try:
            await client.ask(PAYLOAD, kept)
        finally:
            client.close()
        return kept


async def test_bodies_are_read_for_every_kind_of_length() -> None:
    for answer, ends in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello", False),
        (b"HTTP/1.1 200 OK\r\nx-a: b\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nx-a: b\r\n\r\nhello", True),
        (b"HTTP/1.0 200 OK\r\nx-a: b\r\n\r\nhello", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 5\r\n\r\nhello", False),
    ):
        kept = await request_once(answer, ends=ends)
        assert (kept.status, kept.headers["x-a"], kept.content) == (200, "b", b"hello"), answer


async def test_the_time_of_sending_is_after_the_connection_was_opened_and_before_the_response() -> None:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")

    async with scripted_server(script) as server:
        client, kept = client_of(server.port), Kept()
        before_s = perf_counter()
        sent_s = await client.ask(PAYLOAD, kept)
        client.close()
    assert before_s < sent_s < kept.pieces[0][1]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", "closed the connection"),
        (EVENT_HEAD + chunk(b"data: 1\n\n"), "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "invalid HTTP"),
    ],
)
async def test_broken_responses_are_connection_errors(answer: bytes, expected: str) -> None:
    with pytest.raises(ConnectionError, match=expected):
        await request_once(answer, ends=True)


async def test_each_piece_has_its_arrival_time() -> None:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_HEAD)
        for number in range(3):
            await asyncio.sleep(0.05)
            writer.write(chunk(b"%d" % number))
        writer.write(LAST_CHUNK)

    async with scripted_server(script) as server:
        client, kept = client_of(server.port), Kept()
        await client.ask(PAYLOAD, kept)
        client.close()
    times = [at_s for _, at_s in kept.pieces]
    assert kept.content == b"012"
    assert 0.04 < times[1] - times[0] < 5
    assert 0.04 < times[2] - times[1] < 5


async def respond_ok(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


async def test_connections_are_kept_one_per_concurrent_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_server(respond_ok) as server:
        client = client_of(server.port)
        for _ in range(3):
            await client.ask(PAYLOAD, Kept())
        assert server.num_connections == 1
        await asyncio.gather(*(client.ask(PAYLOAD, Kept()) for _ in range(8)))
        assert server.num_connections == 8
        monkeypatch.setattr(client_module, "KEEP_IDLE_S", 0.0)
        await client.ask(PAYLOAD, Kept())
        assert server.num_connections == 9  # the idle connections were too old to be reused
        client.close()
        assert server.requests[0].head.startswith("POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:1\r\n")
        assert server.requests[0].body == b'{"a": 1}'


async def test_a_connection_closed_by_the_server_is_not_reused() -> None:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")

    async with scripted_server(script) as server:
        client = client_of(server.port)
        for _ in range(3):
            await client.ask(PAYLOAD, Kept())
        assert server.num_connections == 3


async def test_a_response_has_a_time_limit() -> None:
    async def script(_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_HEAD)
        await asyncio.sleep(60)

    async with scripted_server(script) as server:
        client = client_of(server.port, timeout_s=0.1)
        with pytest.raises(TimeoutError):
            await client.ask(PAYLOAD, Kept())


async def test_https_with_a_private_authority() -> None:
    authority = trustme.CA()
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    authority.configure_trust(client_side)
    async with scripted_server(respond_ok, server_side) as server:
        for tls in (client_side, ssl.create_default_context()):
            client, kept = HttpClient("127.0.0.1", server.port, tls, 10.0), Kept()
            if tls is client_side:
                await client.ask(PAYLOAD, kept)
                assert kept.content == b"ok"
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    await client.ask(PAYLOAD, kept)
            client.close()


async def test_a_refused_connection_is_an_error() -> None:
    async with scripted_server(respond_ok) as server:
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        await client_of(port).ask(PAYLOAD, Kept())

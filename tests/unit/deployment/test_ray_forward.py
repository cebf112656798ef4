"""Requests that are passed on to a server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from deployment.ports import free_ports
from deployment.ray_forward import Forward

HOST = "127.0.0.1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Forward]:
    """Passes on to a server of one connection."""
    server = await asyncio.start_server(serve, HOST, 0)
    forward = Forward(f"http://{HOST}:{server.sockets[0].getsockname()[1]}")
    try:
        yield forward
    finally:
        await forward.close()
        server.close()
        await server.wait_closed()


def request(path: str, body: bytes = b"", root: str = "", **headers: str) -> Request:
    """What Serve hands over."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "root_path": root, "headers": raw}
    return Request({**scope, "query_string": b"a=1&b=%20"}, receive)


async def test_a_request_and_its_answer_go_through_as_they_are() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        assert await reader.readexactly(4) == b"body"
        writer.write(b"HTTP/1.1 418 No\r\nset-cookie: a\r\nset-cookie: b\r\nconnection: close\r\n\r\nfirst")
        await writer.drain()
        writer.close()

    async with serving(serve) as forward:
        sent = request("/llm/v1/é x", b"body", "/llm", content_length="4", x_mine="yes", host="public", te="trailers")
        answer = await forward(sent)
        assert isinstance(answer, StreamingResponse)
        assert answer.status_code == 418
        assert answer.raw_headers == [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
        assert b"".join([bytes(chunk) async for chunk in answer.body_iterator]) == b"first"  # type: ignore[arg-type]
    [head] = heads
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /v1/%c3%a9%20x?a=1&b=%20 http/1.1"
    assert b"x-mine: yes" in lines
    assert b"content-length: 4" in lines
    assert not any(line.startswith((b"te:", b"transfer-encoding:", b"host: public")) for line in lines)


async def test_a_body_comes_piece_by_piece_and_its_end_is_the_connections() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        assert await reader.read() == b""  # the other side closed
        writer.close()
        ended.set()

    async with serving(serve) as forward:
        answer = await forward(request("/"))
        assert isinstance(answer, StreamingResponse)
        body = aiter(answer.body_iterator)
        assert await anext(body) == b"first"
        assert not ended.is_set()
        await body.aclose()  # type: ignore[attr-defined]  # it is a generator
        async with asyncio.timeout(10):
            await ended.wait()


async def test_a_server_that_is_gone_is_told_as_503() -> None:
    forward = Forward(f"http://{HOST}:{free_ports(HOST, 1)[0]}")
    answer = await forward(request("/v1/models"))
    assert answer.status_code == 503
    assert b"cannot be reached" in bytes(answer.body)
    await forward.close()


@pytest.mark.parametrize("path", ["/", "/llm"])
async def test_the_application_itself_is_the_servers_root(path: str) -> None:
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 204 No\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with serving(serve) as forward:
        assert (await forward(request(path, root="" if path == "/" else path))).status_code == 204
    assert lines == [b"GET /?a=1&b=%20 HTTP/1.1"]

"""Requests that Serve's replica forwards to a server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.deployment.local.ports import free_ports
from baton.deployment.ray.forward import Forward

HOST = "127.0.0.1"
END_S = 20.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Forward]:
    """Yield a client that forwards to a server of one connection."""
    server = await asyncio.start_server(serve, HOST, 0)
    forward = Forward(f"http://{HOST}:{server.sockets[0].getsockname()[1]}")
    try:
        yield forward
    finally:
        await forward.close()
        server.close()
        await server.wait_closed()


def request(path: str, body: bytes = b"", root: str = "", query: bytes = b"a=1&b=%20", **headers: str) -> Request:
    """Return a request as Serve passes it."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "root_path": root, "headers": raw}
    return Request({**scope, "query_string": query}, receive)


async def test_a_request_and_its_response_pass_unchanged() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        assert await reader.readexactly(4) == b"body"
        own = b"Date: today\r\nX-Request-ID: 1\r\nserver: baton"  # Serve adds these itself
        cookies = b"set-cookie: a\r\nset-cookie: b"
        writer.write(b"HTTP/1.1 418 No\r\n%b\r\n%b\r\nconnection: close\r\n\r\nfirst" % (own, cookies))
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


async def test_a_lost_server_is_reported_as_503() -> None:
    forward = Forward(f"http://{HOST}:{free_ports(HOST, 1)[0]}")
    answer = await forward(request("/v1/models"))
    assert answer.status_code == 503
    assert b"cannot be reached" in bytes(answer.body)
    await forward.close()


async def lines_of(*sent: Request) -> list[str]:
    """Return the request lines that reach the server."""
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 204 No\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with serving(serve) as forward:
        for each in sent:
            assert (await forward(each)).status_code == 204
    return [line.decode("ascii") for line in lines]


@pytest.mark.parametrize("path", ["/", "/llm"])
async def test_the_applications_path_is_the_servers_root(path: str) -> None:
    assert await lines_of(request(path, root="" if path == "/" else path)) == ["GET /?a=1&b=%20 HTTP/1.1"]


@pytest.mark.parametrize(
    ("query", "passed_on"),
    [
        (b"a=\xff&b=caf\xc3\xa9", "?a=%FF&b=caf%C3%A9"),  # as sent by curl
        (b"a=%ff&b=%zz&c=1+2;d=~!*", "?a=%ff&b=%zz&c=1+2;d=~!*"),
        (b"", ""),
    ],
)
async def test_a_query_passes_unchanged_except_for_bytes_that_are_invalid_in_urls(query: bytes, passed_on: str) -> None:
    assert await lines_of(request("/v1/models", query=query)) == [f"GET /v1/models{passed_on} HTTP/1.1"]


class HeldStream:
    """An ASGI application whose response has two pieces; the test releases each."""

    def __init__(self) -> None:
        self.started, self.left = asyncio.Event(), asyncio.Event()  # the request has arrived; its client has left
        self.first, self.second = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        self.started.set()
        answering = asyncio.create_task(self._answer(send))
        assert await receive() == {"type": "http.disconnect"}  # or the response is complete
        if not answering.done():
            self.left.set()
            answering.cancel()
        await asyncio.wait([answering])

    async def _answer(self, send: Send) -> None:
        await self.first.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await self.second.wait()
        await send({"type": "http.response.body", "body": b"second"})


class Server(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """Serve the application and return the URL; at the end all its requests must have ended."""
    with socket.create_server((HOST, 0)) as listener:
        server = Server(uvicorn.Config(app, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, END_S)


@asynccontextmanager
async def forwarding(app: ASGIApp) -> AsyncIterator[ASGIApp]:
    """Return an application that forwards to the server of another, like a replica of Serve."""
    async with listening(app) as url:
        forward = Forward(url)

        async def call_forward(scope: Scope, receive: Receive, send: Send) -> None:
            answer = await forward(Request(scope, receive))
            await answer(scope, receive, send)

        try:
            yield call_forward
        finally:
            await forward.close()


async def test_each_piece_of_a_stream_is_forwarded_at_once() -> None:
    held = HeldStream()
    async with (
        asyncio.timeout(END_S),
        forwarding(held) as app,
        listening(app) as url,
        httpx.AsyncClient(trust_env=False, verify=False) as client,
    ):
        held.first.set()
        async with client.stream("POST", url, content=b"x") as answer:
            body = answer.aiter_raw()
            assert await anext(body) == b"first"
            held.second.set()
            assert [piece async for piece in body] == [b"second"]
        assert not held.left.is_set()


async def test_a_client_that_disconnects_in_mid_stream_ends_the_request() -> None:
    held = HeldStream()
    async with asyncio.timeout(END_S), forwarding(held) as app, listening(app) as url:
        held.first.set()
        async with (
            httpx.AsyncClient(trust_env=False, verify=False) as client,
            client.stream("POST", url, content=b"x") as answer,
        ):
            body = answer.aiter_raw()
            assert await anext(body) == b"first"
            assert not held.left.is_set()
        await held.left.wait()


class Caller:
    """The caller of an ASGI application; it sends only what the test says."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[Message] = asyncio.Queue()
        self.says: asyncio.Queue[Message] = asyncio.Queue()
        self.scope = request("/").scope

    def call(self, app: ASGIApp) -> asyncio.Task[None]:
        """Begin the call."""

        async def run() -> None:
            await app(self.scope, self.says.get, self.got.put)

        return asyncio.create_task(run())


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_call_that_is_cancelled_ends_the_request(is_answered: bool) -> None:
    held, caller = HeldStream(), Caller()
    async with asyncio.timeout(END_S), forwarding(held) as app:
        call = caller.call(app)
        await held.started.wait()
        if is_answered:
            held.first.set()
            assert (await caller.got.get())["type"] == "http.response.start"
            assert (await caller.got.get())["body"] == b"first"
        assert not held.left.is_set()
        call.cancel()
        await held.left.wait()
        assert (await asyncio.gather(call, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_a_client_that_disconnects_before_the_response_ends_the_request() -> None:
    held, caller = HeldStream(), Caller()
    async with asyncio.timeout(END_S), forwarding(held) as app:
        call = caller.call(app)
        await held.started.wait()
        caller.says.put_nowait({"type": "http.disconnect"})
        assert not held.left.is_set()
        held.first.set()
        await held.left.wait()
        await call

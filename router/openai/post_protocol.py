"""The connections of the HTTP server: uvicorn's, with a short way from a request's last byte to its route.

Plain HTTP/1.1 requests to a known path that takes bodies are answered on the connection itself. All others (and those
that wait to be told to go on) go uvicorn's own way, over ASGI.

A connection has one request at a time. Who sends another before the answer gets the answer, and then the connection
ends: requests that wait would take memory without bound, and while they wait unread nobody sees the client go away.

Who sends nothing more of a request, or takes nothing more of an answer, loses the connection after a while: both hold
what others could use.

Who shows no API key where one is needed is told so by the head alone; a head itself has a bound.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from router.client import ANYBODY, Client
from router.openai.body_route import BodyRoute
from router.openai.disconnect import ClientGone
from router.openai.errors import error_body
from router.openai.exchange import announced_size, check_size, new_id, read_headers

logger = logging.getLogger(__name__)

STALL_S = 30.0  # without a byte taken by a client that is behind with its answer
MAX_HEAD_BYTES = 32 << 10  # of a request's line and headers, and of what stands between the parts of its body
LINGER_S = 1.0  # of a connection without a request when the server leaves: one may be on its way
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
EVENTS_HEAD = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
    b"transfer-encoding: chunked\r\n"
)


class Pipelined(Exception):
    """A request came before the last one's answer."""


class HeadTooLarge(Exception):
    """A request's head is over the bound."""


class PostProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *, posts: Mapping[bytes, BodyRoute[Any]], leaving: asyncio.Event, **options: Any) -> None:
        """`posts`: by path; `leaving`: set once the server gives up its port; `options`: uvicorn's."""
        super().__init__(**options)
        self._posts = posts
        self._leaving = leaving
        self._is_over = False  # what comes now is not read any more
        self._is_reading = False  # a request has begun, and not all of it is here
        self._has_head = False  # of the request that is being read or was last
        self._num_head_bytes = 0  # that came since the request's begin or the last part of its body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        """asyncio: the connection begins."""
        super().connection_made(transport)
        if self._leaving.is_set():
            self.leave()
        else:
            self._end_soon(self.timeout_keep_alive)

    def leave(self) -> None:
        """Ends the connection with the answer that is awaited; else with the next one, or soon if nothing is asked."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        self._end_soon(LINGER_S)

    def _end_soon(self, timeout_s: float) -> None:
        """Ends the connection unless something comes in time."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(timeout_s, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """asyncio: something came."""
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        self._num_head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._begin_again(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._is_over:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
        if self._is_reading and not self._is_over:
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            self._end_soon(self.timeout_keep_alive)

    def _head_size(self) -> int:
        """Bytes of the head; with it, a part of the body may have come."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse_head(self) -> None:
        """Answers a head that is too large, and ends the connection."""
        self._is_over = True
        if self._has_head and self.cycle.response_started:
            self.transport.close()  # it was answered before its body was all here
            return
        text = f"the request's line and headers are over the limit of {MAX_HEAD_BYTES} bytes"
        body = orjson.dumps(error_body(text, "invalid_request_error", None, 431))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINES[431] + head + body)
        self.transport.close()

    def _begin_again(self, rest: bytes) -> None:
        """Reads a request without its wish for another protocol, as who speaks none must (RFC 9110, 7.8): with it, the
        parser takes what comes after the head for that protocol's.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("This is no proxy.")
            return
        head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
        head += [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.data_received(b"".join((*head, b"\r\n", rest)))

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._is_over = True
            raise Pipelined
        self._is_reading, self._has_head = True, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """httptools: the head of a request is here."""
        parser = self.parser
        if self._num_head_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES:
            self._refuse_head()
            raise HeadTooLarge
        self._num_head_bytes = 0
        if parser.should_upgrade():
            return  # it begins again
        route = self._posts.get(self.url)
        if (
            route is None or self.expect_100_continue
            or parser.get_method() != b"POST" or parser.get_http_version() != "1.1"
        ):  # fmt: skip
            super().on_headers_complete()
        else:
            self.cycle = exchange = PostExchange(self, route)
            if not route.lets_in(exchange):
                exchange.serve()
        self._has_head = True
        if self._leaving.is_set():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """httptools: a part of a request's body is here."""
        self._num_head_bytes = 0
        if isinstance(self.cycle, PostExchange):
            self.cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """httptools: all of a request is here."""
        if self.parser.should_upgrade():
            return
        self._is_reading = False
        self._num_head_bytes = 0
        if isinstance(self.cycle, PostExchange):
            self.cycle.serve()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is over."""
        super().connection_lost(exc)
        if isinstance(self.cycle, PostExchange):
            self.cycle.lost()


class PostExchange(RequestResponseCycle):
    """An exchange on its connection, in uvicorn's own terms; it is its own watch for the client's going away."""

    def __init__(self, protocol: PostProtocol, route: BodyRoute[Any]) -> None:
        super().__init__(
            scope=protocol.scope,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=protocol.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=protocol.parser.should_keep_alive(),
            on_response=protocol.on_response_complete,
        )
        self.headers = read_headers(protocol.headers)
        self.request_id = new_id(self.headers.get("x-request-id", ""))
        self.client: Client = ANYBODY
        self._protocol = protocol
        self._route = route
        self._task: asyncio.Task[None] | None = None
        self._num_cancelling = 0
        self._watching = self._cancelled = False

    @property
    def started(self) -> bool:
        """Whether the answer's head is out."""
        return self.response_started

    def add(self, part: bytes) -> None:
        """A part of the body came. What is too large is not kept, and answered before it is all there."""
        if self._task is not None:
            return
        self.body += part
        if max(len(self.body), announced_size(self.headers)) > self._route.max_body_bytes:
            self.serve()

    def serve(self) -> None:
        """The body is here: the route begins."""
        if self._task is not None:
            return
        tasks = self._protocol.tasks
        self._task = self._protocol.loop.create_task(self._run())
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    def lost(self) -> None:
        """The client is gone."""
        self.disconnected = not self.response_complete
        if self._watching and not self._cancelled and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def read(self, max_bytes: int) -> bytes:
        """The body. Raises HTTPException (413) for a larger one."""
        check_size(max(len(self.body), announced_size(self.headers)), max_bytes)
        body, self.body = bytes(self.body), bytearray()
        return body

    def watch(self) -> "PostExchange":
        """A context in which the current task ends with ClientGone when the client goes away."""
        return self

    async def __aenter__(self) -> "PostExchange":
        if self.disconnected:
            raise ClientGone
        assert self._task is not None
        self._num_cancelling = self._task.cancelling()
        self._watching = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching = False
        if self._cancelled and self._task is not None:
            num_cancelling = self._task.uncancel()
            if num_cancelling <= self._num_cancelling and isinstance(error, asyncio.CancelledError):
                raise ClientGone from None

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole answer: JSON, or nothing."""
        kind = b"content-type: application/json\r\n" if body else b""
        self._write(self._head(status, b"content-length: %d\r\n%b" % (len(body), kind), headers or {}) + body)
        self._complete()

    async def begin_events(self, headers: Mapping[str, str]) -> None:
        """Sends the head of a stream of events."""
        self._write(self._head(200, EVENTS_HEAD, headers))

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Sends events; waits while the client is behind. Raises ClientGone."""
        if self.flow.write_paused and not self.disconnected:
            await self._wait_taken()
        chunk = b"%x\r\n%b\r\n" % (len(events), events) if events else b""
        if last:
            self._write(chunk + b"0\r\n\r\n")
            self._complete()
        elif chunk:
            self._write(chunk)

    async def _wait_taken(self) -> None:
        """Returns once the client has taken most of what it was sent. Raises ClientGone if it takes nothing."""
        while self.flow.write_paused and not self.disconnected:
            num_left = self.transport.get_write_buffer_size()
            with suppress(TimeoutError):
                async with asyncio.timeout(STALL_S):
                    await self.flow.drain()
            if self.flow.write_paused and self.transport.get_write_buffer_size() >= num_left:
                logger.warning("%s is cancelled: its client took nothing for %.0f s", self.request_id, STALL_S)
                self.transport.abort()
                raise ClientGone

    def _write(self, data: bytes) -> None:
        if self.disconnected:
            raise ClientGone
        self.response_started = True
        self.transport.write(data)

    def _head(self, status: int, own: bytes, headers: Mapping[str, str]) -> bytes:
        parts = [STATUS_LINES[status], own]
        parts += [b"%b: %b\r\n" % header for header in self.default_headers]
        for name, value in self.client.headers().items():
            parts.append(f"{name}: {value}\r\n".encode())
        for name, value in headers.items():
            if not value.isprintable():
                raise ValueError(f"the header {name} would have {value!r}")
            parts.append(f"{name}: {value}\r\n".encode("latin-1"))
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"x-request-id: %b\r\n\r\n" % self.request_id.encode())
        return b"".join(parts)

    def _complete(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def _run(self) -> None:
        try:
            await self._route.serve(self)
        except Exception:
            logger.exception("%s failed with half of its answer out", self.request_id)
            self.transport.close()
        else:
            if not self.response_complete and not self.disconnected:
                logger.error("%s has no whole answer", self.request_id)
                self.transport.close()

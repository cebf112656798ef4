"""One request that came whole over its own connection, and its answer: what a route needs, in uvicorn's own terms."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from baton.router.client import ANYBODY, Client
from baton.router.openai.body_route import BodyRoute
from baton.router.openai.cross_origin import CrossOrigin
from baton.router.openai.disconnect import ClientGone
from baton.router.openai.exchange import announced_size, check_size, new_id, read_headers
from baton.router.openai.taken import num_taken

logger = logging.getLogger(__name__)

STALL_S = 30.0  # without a byte taken by a client that is behind with its answer
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
EVENTS_HEAD = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


class PostExchange(RequestResponseCycle):
    """An exchange on its connection, in uvicorn's own terms; it is its own watch for the client's going away."""

    def __init__(
        self, protocol: HttpToolsProtocol, route: BodyRoute[Any], cross_origin: CrossOrigin | None = None
    ) -> None:
        """With `cross_origin`, the response has its headers too."""
        self.headers = read_headers(protocol.headers)
        is_http_1_1 = protocol.parser.get_http_version() == "1.1"
        default_headers = protocol.server_state.default_headers
        if cross_origin is not None:
            default_headers = [*default_headers, *cross_origin.response_headers(self.headers.get("origin"))]
        super().__init__(
            scope=protocol.scope,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=is_http_1_1 and protocol.parser.should_keep_alive(),
            on_response=protocol.on_response_complete,
        )
        self.request_id = new_id(self.headers.get("x-request-id", ""))
        self.client: Client = ANYBODY
        self._protocol = protocol
        self._route = route
        self._task: asyncio.Task[None] | None = None
        self._num_cancelling = 0
        self._is_chunked = is_http_1_1  # a stream; HTTP/1.0 knows the end of one by the end of the connection
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
        self._write(self._head(200, EVENTS_HEAD + CHUNKED if self._is_chunked else EVENTS_HEAD, headers))

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Sends events; waits while the client is behind. Raises ClientGone."""
        if self.flow.write_paused and not self.disconnected:
            await self._wait_taken()
        chunk = b"%x\r\n%b\r\n" % (len(events), events) if events and self._is_chunked else events
        if last:
            self._write(chunk + b"0\r\n\r\n" if self._is_chunked else chunk)
            self._complete()
        elif chunk:
            self._write(chunk)

    async def _wait_taken(self) -> None:
        """Returns once the client has taken most of what it was sent. Raises ClientGone if it takes nothing."""
        while self.flow.write_paused and not self.disconnected:
            num_taken_before = num_taken(self.transport)
            with suppress(TimeoutError):
                async with asyncio.timeout(STALL_S):
                    await self.flow.drain()
            if not self.flow.write_paused or self.disconnected:
                return
            if num_taken(self.transport) <= num_taken_before:
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
            self._break_off()
        else:
            if not self.response_complete and not self.disconnected:
                logger.error("%s has no whole answer", self.request_id)
                self._break_off()

    def _break_off(self) -> None:
        """Ends the connection, by which the client sees that its answer is not whole."""
        self.transport.close()
        self.on_response()

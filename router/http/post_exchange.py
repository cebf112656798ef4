"""One POST request and its response, directly on its uvicorn connection."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from baton.process.request_scope import enter_request
from baton.router.admission.body_budget import Upload
from baton.router.admission.unread_output import UnreadOutput, UnreadShare
from baton.router.auth.client import ANONYMOUS, Client
from baton.router.errors import Overloaded
from baton.router.http.body_reader import check_size
from baton.router.http.body_route import BodyRoute
from baton.router.http.exchange import ClientGone, EventSource
from baton.router.http.headers import new_id, read_headers
from baton.router.http.middleware import CrossOrigin
from baton.router.resumption.resumption import Resumption
from baton.router.tracing.request_trace import RequestTrace

logger = logging.getLogger(__name__)

SLICE_BYTES = 1 << 16  # maximum output written to the transport at once
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
EVENTS_HEAD = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


class PostExchange(RequestResponseCycle):
    """An `Exchange` on a uvicorn connection. It is also the context manager that `watch` returns."""

    def __init__(
        self,
        protocol: HttpToolsProtocol,
        route: BodyRoute[Any],
        unread: UnreadOutput,
        cross_origin: CrossOrigin | None = None,
    ) -> None:
        """`cross_origin`: adds its CORS headers to the response."""
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
        self.client: Client = ANONYMOUS
        self.resumption: Resumption | None = None
        self.trace: RequestTrace | None = None
        self.address = protocol.client[0] if protocol.client else ""
        self.upload: Upload | None = None
        self.refusal: Exception | None = None
        self.response_headers: dict[str, str] = {}
        self.has_body = False  # the whole body has been received
        self._protocol = protocol
        self._route = route
        self._task: asyncio.Task[None] | None = None
        self._num_cancelling = 0
        self._is_chunked = is_http_1_1  # HTTP/1.0 ends a stream by closing the connection
        self._watching = self._cancelled = False
        self._unread = unread
        self._share: UnreadShare | None = None  # while the client lags
        self._pieces: deque[memoryview] = deque()  # output that waits for the transport
        self._num_kept = 0  # bytes in `_pieces`
        self._source: EventSource | None = None
        self._is_whole = False  # the route has sent the whole response

    @property
    def begun(self) -> bool:
        """Whether the route has started."""
        return self._task is not None

    @property
    def started(self) -> bool:
        """Whether the response headers have been sent."""
        return self.response_started

    def error_body(self, error: Exception) -> bytes:
        """Return the body of an error in the shape of the path's API."""
        return bytes(self._route.error_response(error, self.request_id).body)

    def add(self, part: bytes) -> None:
        """Buffer a part of the body. Discards it once the request is refused."""
        if self._task is not None:
            return
        try:
            check_size(len(self.body) + len(part), self._route.max_body_bytes)
            if self.upload is not None:
                self.upload.add(len(part))
        except HTTPException as error:
            self.refuse(error)
        except Overloaded as error:
            self.keep_alive = False
            self.refuse(error)
        else:
            self.body += part

    def refuse(self, error: Exception) -> None:
        """Respond with an error and free the body."""
        self.refusal = error
        self.forget_body()
        self.serve()

    def end_body(self) -> None:
        """Start the route: the whole body has been received."""
        self.has_body = True
        self.serve()

    def serve(self) -> None:
        """Start the route: the body has been received, or the request is refused."""
        if self._task is not None:
            return
        tasks = self._protocol.tasks
        self._task = self._protocol.loop.create_task(self._run())
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    def lost(self) -> None:
        """Free the buffers and cancel the route: the client has disconnected."""
        self.disconnected = not self.response_complete
        if self._task is None or self._task.done():
            self.forget_body()
        self._drop_unread()
        if self._watching and not self._cancelled and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def forget_body(self, num_kept: int = 0) -> None:
        """Free the body and release its bytes in the budget but `num_kept`. Raises Overloaded."""
        self.body = bytearray()
        if self.upload is not None:
            self.upload.release(num_kept)

    async def read(self, max_bytes: int) -> bytearray:
        """Return the body. Raises the error of a refused request, or ClientGone."""
        if self.refusal is not None:
            try:
                raise self.refusal
            finally:
                self.refusal = None  # breaks a reference cycle: its traceback refers to this exchange
        if self.disconnected:
            raise ClientGone
        body, self.body = self.body, bytearray()
        return body

    def watch(self) -> "PostExchange":
        """Return a context in which the current task fails with ClientGone if the client disconnects."""
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

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete response: JSON unless `headers` has another content type, or empty."""
        headers = headers or {}
        kind = b"content-type: application/json\r\n" if body and "content-type" not in headers else b""
        self._send(self._head(status, b"content-length: %d\r\n%b" % (len(body), kind), headers) + body)
        self._end()

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Send the headers of an event stream. Events are taken from `source` when a lagging client catches up."""
        self._source = source
        self._send(self._head(200, EVENTS_HEAD + CHUNKED if self._is_chunked else EVENTS_HEAD, headers))

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Send events, after those in the source. Raises ClientGone."""
        if self.is_behind and self._source is not None:
            events = self._source.take() + events
        chunk = self._chunk(events)
        if last:
            self._send(chunk + b"0\r\n\r\n" if self._is_chunked else chunk)
            self._end()
        elif chunk:
            self._send(chunk)

    @property
    def is_behind(self) -> bool:
        """Whether the client lags."""
        return self.flow.write_paused or bool(self._pieces)

    def count_unread(self) -> None:
        """Count the client's unread output. May abort the exchange if there is too much of it."""
        if not self.is_behind:
            self._forget_unread()
            return
        if self._share is None:
            self._share = self._unread.begin(self.request_id, self.client.fairness_key, self._give_up)
        num_sending = len(self._pieces[0]) if self._pieces else 0
        num_waiting = self._num_kept - num_sending + (self._source.num_bytes if self._source is not None else 0)
        self._share.update(num_sending + self.transport.get_write_buffer_size(), num_waiting)

    def caught_up(self) -> None:
        """Send waiting output: the transport accepts more."""
        while not self.flow.write_paused and not self.disconnected:
            if self._pieces:
                self._write_slice()
            elif self._source is not None and self._source.num_bytes:
                self._keep(self._chunk(self._source.take()))
            else:
                break
        self.count_unread()
        if self._is_whole and not (self.is_behind or self.disconnected or self.response_complete):
            self._complete()

    def _chunk(self, events: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(events), events) if events and self._is_chunked else events

    def _send(self, data: bytes) -> None:
        """Write data, or buffer it while the client lags. Raises ClientGone."""
        if self.disconnected:
            raise ClientGone
        self.response_started = True
        if len(data) <= SLICE_BYTES and not self.is_behind:
            self.transport.write(data)
        else:
            self._keep(data)
            self.caught_up()

    def _keep(self, data: bytes) -> None:
        if data:
            self._pieces.append(memoryview(data))
            self._num_kept += len(data)

    def _write_slice(self) -> None:
        piece = self._pieces[0]
        data, rest = piece[:SLICE_BYTES], piece[SLICE_BYTES:]
        if rest:
            self._pieces[0] = rest
        else:
            self._pieces.popleft()
        self._num_kept -= len(data)
        self.transport.write(data)

    def _end(self) -> None:
        """Mark the response as whole. It is complete once the client has read nearly all of it."""
        self._is_whole = True
        self.caught_up()

    def _give_up(self) -> None:
        """Abort the connection and with it the route: the client left too much output unread."""
        self.disconnected = True
        self.transport.abort()

    def _drop_unread(self) -> None:
        """Discard all output that waits for the client."""
        self._pieces.clear()
        self._num_kept = 0
        self._source = None
        self._forget_unread()

    def _forget_unread(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None

    def _head(self, status: int, first: bytes, headers: Mapping[str, str]) -> bytes:
        parts = [STATUS_LINES[status], first]
        parts += [b"%b: %b\r\n" % header for header in self.default_headers]
        for name, value in self.client.headers().items():
            parts.append(f"{name}: {value}\r\n".encode())
        for name, value in {**self.response_headers, **headers}.items():
            if not value.isprintable():
                raise ValueError(f"the value {value!r} of header {name} is not printable")
            parts.append(f"{name}: {value}\r\n".encode("latin-1"))
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"x-request-id: %b\r\n\r\n" % self.request_id.encode())
        return b"".join(parts)

    def _complete(self) -> None:
        self.response_complete = True
        if not self.keep_alive and self.has_body:
            self.transport.close()
        self.on_response()

    async def _run(self) -> None:
        enter_request(self.request_id)
        try:
            await self._route.serve(self)
        except Exception:
            logger.exception("%s failed in the middle of its response", self.request_id)
            self._break_off()
        else:
            if not self._is_whole and not self.disconnected:
                logger.error("%s: the route returned without a complete response", self.request_id)
                self._break_off()

    def _break_off(self) -> None:
        """Close the connection, which shows the client that its response is incomplete."""
        self._drop_unread()
        self.transport.close()
        self.on_response()

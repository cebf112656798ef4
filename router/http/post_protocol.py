"""Connections of the HTTP server: uvicorn's protocol with a shortcut for POST requests.

POST requests to a known path that takes bodies are served directly on the connection. All others are served by uvicorn
over ASGI.

A connection has one request at a time. If a client sends another request before the response, the connection ends after
that response: queued requests would take unbounded memory, and while they are unread a disconnect goes unnoticed.

A connection is closed if its client stops sending in the middle of a request, or reads a response too slowly while it
lags (`StallWatch`): both hold resources.

Requests without a required API key are rejected after the headers. Headers are limited to 32 KiB.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
import orjson
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.router.admission.unread_output import UnreadOutput
from baton.router.http.body_route import BodyRoute
from baton.router.http.middleware import CrossOrigin
from baton.router.http.parse_turns import MAX_CALLBACKS, SLICE_BYTES, PacedData, ParseTurns
from baton.router.http.post_exchange import STATUS_LINES, PostExchange
from baton.router.http.stall_watch import StallWatch
from baton.router.openai.errors import error_body

LEAST_BYTES_PER_S = 16 << 10  # minimum rate of a request that takes longer than `body_timeout_s`
DISCARD_S = 30.0  # to receive the rest of a refused body: closing with unread bytes may lose the response
HEADER_BYTES = 3  # separators of a header: a colon and the end of the line
MAX_HEAD_BYTES = 32 << 10  # of the request line and headers, and of the framing between two parts of a body
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # for clients that wait for it before they send the body
LINGER_S = 1.0  # grace of an idle connection when the server stops listening: a request may be in transit


class Pipelined(Exception):
    """A request arrived before the response to the previous one."""


class HeadTooLarge(Exception):
    """The request line and headers exceed the limit."""


class PostProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        *,
        posts: Mapping[bytes, BodyRoute[Any]],
        cross_origin: CrossOrigin | None,
        unread: UnreadOutput,
        leaving: asyncio.Event,
        body_timeout_s: float,
        turns: ParseTurns,
        **options: Any,
    ) -> None:
        """`posts`: routes by path. `leaving`: set once the server stops listening. `options`: uvicorn's.

        `turns`: of all connections.
        """
        super().__init__(**options)
        self._posts = posts
        self._cross_origin = cross_origin
        self._unread = unread
        self._leaving = leaving
        self._body_timeout_s = body_timeout_s
        self._turns = turns
        self._paced: PacedData | None = None  # created when data waits for the first time
        self._num_callbacks = 0  # of the parser, for parts of bodies and trailers
        self._stall_watch: StallWatch | None = None  # created when the client lags for the first time
        self._is_over = False  # further data is ignored
        self._is_reading = False  # a request is being received
        self._has_head = False  # the headers of the current or last request have been parsed
        self._num_header_bytes = 0  # size of the parsed headers
        self._num_head_bytes = 0  # received since the start of the request or the last part of its body
        self._discarding: asyncio.TimerHandle | None = None  # closes the connection if a refused body does not end
        self._begun_s = 0.0  # start of the request that is being received
        self._num_read = 0  # received bytes of this request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        """asyncio: the connection is established."""
        super().connection_made(transport)
        if self._leaving.is_set():
            self.leave()
        else:
            self._end_soon(self.timeout_keep_alive)

    def leave(self) -> None:
        """End the connection after the pending response; without one, after `LINGER_S` or the next response.

        The rest of a refused body is not waited for.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif self._is_reading and self.cycle is not None:
            self._discard_for(LINGER_S)
        else:
            self._end_soon(LINGER_S)

    def _end_soon(self, timeout_s: float) -> None:
        """Close the connection unless data arrives within the timeout."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(timeout_s, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection: no data arrived in time."""
        super().timeout_keep_alive_handler()
        self._watch_end()

    def on_response_complete(self) -> None:
        """uvicorn: the response is complete, though the transport may still buffer a part of it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_end()
        elif self._is_reading:
            self._discard_for(LINGER_S if self._leaving.is_set() else DISCARD_S)

    def _discard_for(self, timeout_s: float) -> None:
        """Close the connection if the rest of a refused body takes longer to arrive."""
        if self._discarding is not None:
            self._discarding.cancel()
        self._discarding = self.loop.call_later(timeout_s, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._watch_end()

    def send_400_response(self, msg: str) -> None:
        """Respond to data that is not HTTP."""
        super().send_400_response(msg)
        self._watch_end()

    def pause_writing(self) -> None:
        """asyncio: the client lags."""
        super().pause_writing()
        self._watch_stalls().start()

    def resume_writing(self) -> None:
        """asyncio: the client has read nearly all output."""
        super().resume_writing()
        self._watch_stalls().caught_up()
        if isinstance(self.cycle, PostExchange):
            self.cycle.caught_up()

    def _watch_end(self) -> None:
        """Make sure that a closed connection ends, once the client has read all output or reads it too slowly.

        TLS clients should then send a close_notify, but may not.
        """
        if self in self.connections:
            self._watch_stalls().start(is_ending=True)

    def _watch_stalls(self) -> StallWatch:
        if self._stall_watch is None:
            self._stall_watch = StallWatch(self.transport, self._stalled)
        return self._stall_watch

    def _stalled(self) -> None:
        self._unread.stalled(self.cycle.request_id if isinstance(self.cycle, PostExchange) else "a connection")

    def data_received(self, data: bytes) -> None:
        """asyncio: data arrived."""
        if self._is_over:
            return
        if self._paced is not None and self._paced.is_waiting:  # reading has been resumed for another reason
            self._paced.add(data)
            self.flow.pause_reading()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse data in slices. The rest waits for a turn after a slice that took many callbacks."""
        for start in range(0, len(data), SLICE_BYTES):
            if self._is_over:
                return
            before = self._num_callbacks
            self._parse_slice(data[start : start + SLICE_BYTES])
            num_callbacks = self._num_callbacks - before
            if num_callbacks > MAX_CALLBACKS or (self._paced is not None and self._paced.is_waiting):
                self._paced = self._paced or PacedData(self.loop, self._turns, self._take_turn)
                self._paced.add(data[start + SLICE_BYTES :])
                self._paced.wait(num_callbacks)
                self.flow.pause_reading()
                return

    def _take_turn(self, data: bytes) -> None:
        """Parse data that has waited, and read on if nothing waits any more."""
        self._parse(data)
        if self._paced is not None and not self._paced.is_waiting:
            self.flow.resume_reading()

    def _parse_slice(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._num_head_bytes += len(data)
        self._num_read += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._begin_again(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._is_over:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                self._is_over = True
        if self._is_reading and not self._is_over:
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            elif self._is_slow():
                self._refuse(408, f"the request was not received within {self._body_timeout_s:g} s")
            self._end_soon(self.timeout_keep_alive)

    def _is_slow(self) -> bool:
        """Return whether the current request takes too long to arrive."""
        time_s = self.loop.time() - self._begun_s
        return time_s > self._body_timeout_s and time_s > self._body_timeout_s + self._num_read / LEAST_BYTES_PER_S

    def _refuse_head(self) -> None:
        """Respond to headers that are too large, and close the connection."""
        self._refuse(431, f"the request line and headers are over the limit of {MAX_HEAD_BYTES} bytes")

    def _refuse(self, status: int, text: str) -> None:
        """Respond to an incomplete request, and close the connection."""
        self._is_over = True
        if not self._has_head or not self._is_answering():
            if self._has_head and isinstance(self.cycle, PostExchange):
                body = self.cycle.error_body(HTTPException(status, text))
            else:
                body = orjson.dumps(error_body(text, "invalid_request_error", None, status))
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINES[status] + head + body)
        self._close()

    def _is_answering(self) -> bool:
        """Return whether the request already has a response, or is about to, although its body is incomplete."""
        return self.cycle.begun if isinstance(self.cycle, PostExchange) else self.cycle.response_started

    def _begin_again(self, rest: bytes) -> None:
        """Parse a request again without its `upgrade` header, which a server may ignore (RFC 9110, 7.8).

        With the header, the parser treats the data after the headers as the other protocol's.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("This server is not a proxy.")
            return
        head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
        head += [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        self._parse(b"".join((*head, b"\r\n", rest)))

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        if self.cycle is not None and not (self.cycle.response_complete and self.cycle.keep_alive):
            self.cycle.keep_alive = False
            self._is_over = True
            raise Pipelined
        self._is_reading, self._has_head = True, False
        self._num_header_bytes = 0
        self._begun_s, self._num_read = self.loop.time(), 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: parsed a header or a trailer. Trailers are ignored: the request is already authorized."""
        if self._has_head:
            self._num_callbacks += 1
            return
        self._num_header_bytes += len(name) + len(value) + HEADER_BYTES
        self._check_head_size()
        super().on_header(name, value)

    def _check_head_size(self) -> None:
        """Raise HeadTooLarge for a head over the limit. Only bytes of the head count: other data may be the body's."""
        if len(self.url) + self._num_header_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            raise HeadTooLarge

    def on_headers_complete(self) -> None:
        """httptools: parsed the request line and headers."""
        parser = self.parser
        self._check_head_size()  # covers a request without headers
        self._num_head_bytes = 0
        if parser.should_upgrade():
            return  # the request will be parsed again
        route = self._post_route()
        if route is None:
            super().on_headers_complete()
        else:
            self.cycle = exchange = PostExchange(self, route, self._unread, self._cross_origin)
            if not route.is_authorized(exchange):
                exchange.serve()  # rejects the request; needs no body
            elif self.expect_100_continue and parser.get_http_version() == "1.1":
                self.transport.write(CONTINUE)
        self._has_head = True
        if self._leaving.is_set():
            self.cycle.keep_alive = False

    def _post_route(self) -> BodyRoute[Any] | None:
        """Return the route that serves the request on the connection itself; None if it goes over ASGI.

        These routes must not use ASGI: uvicorn streams in chunks, which HTTP/1.0 lacks, and waits for slow clients.
        """
        if self.parser.get_method() != b"POST":
            return None
        return self._posts.get(self.url) or self._posts.get(unquote_to_bytes(httptools.parse_url(self.url).path))

    def on_body(self, body: bytes) -> None:
        """httptools: parsed a part of the body."""
        self._num_head_bytes = 0
        self._num_callbacks += 1
        if isinstance(self.cycle, PostExchange):
            self.cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """httptools: parsed the whole request."""
        if self.parser.should_upgrade():
            return
        self._is_reading = False
        self._num_head_bytes = 0
        if self._discarding is not None:
            self._discarding.cancel()
        if isinstance(self.cycle, PostExchange):
            self.cycle.end_body()
        else:
            super().on_message_complete()
        if self.cycle.response_complete:  # of a refused request
            self._end_soon(self.timeout_keep_alive) if self.cycle.keep_alive else self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._paced is not None:
            self._paced.close()
            self._paced = None  # breaks a reference cycle with this protocol
        if self._stall_watch is not None:
            self._stall_watch.stop()
        if self._discarding is not None:
            self._discarding.cancel()
        if isinstance(self.cycle, PostExchange):
            self.cycle.lost()
        self.cycle = None  # type: ignore[assignment]  # breaks a reference cycle with this protocol

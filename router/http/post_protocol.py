"""The connections of the HTTP server: uvicorn's, with a short way from a request's last byte to its route.

POST requests to a known path that takes bodies are answered on the connection itself. All others go uvicorn's own way,
over ASGI.

A connection has one request at a time. Who sends another before the answer gets the answer, and then the connection
ends: requests that wait would take memory without bound, and while they wait unread nobody sees the client go away.

Who sends nothing more of a request loses the connection after a while, and so does a client that takes too little of
any response while it is behind (`StallWatch`): both hold what others could use.

Who shows no API key where one is needed is told so by the head alone; a head itself has a bound.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.router.admission.unread_output import UnreadOutput
from baton.router.http.body_route import BodyRoute
from baton.router.http.middleware import CrossOrigin
from baton.router.http.post_exchange import STATUS_LINES, PostExchange
from baton.router.http.stall_watch import StallWatch
from baton.router.openai.errors import error_body

LEAST_BYTES_PER_S = 16 << 10  # of a request that takes longer than the time that any may take
DISCARD_S = 30.0  # for the rest of a refused body; a connection that ends with bytes unread may lose the response
HEADER_BYTES = 3  # of a header's separators: a colon and the end of the line
MAX_HEAD_BYTES = 32 << 10  # of a request's line and headers, and of what stands between the parts of its body
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # for clients that wait for it in front of the body
LINGER_S = 1.0  # of a connection without a request when the server leaves: one may be on its way


class Pipelined(Exception):
    """A request came before the last one's answer."""


class HeadTooLarge(Exception):
    """A request's head is over the bound."""


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
        **options: Any,
    ) -> None:
        """`posts`: by path; `leaving`: set once the server gives up its port; `options`: uvicorn's."""
        super().__init__(**options)
        self._posts = posts
        self._cross_origin = cross_origin
        self._unread = unread
        self._leaving = leaving
        self._body_timeout_s = body_timeout_s
        self._stall_watch: StallWatch | None = None  # made when the client is behind for the first time
        self._is_over = False  # what comes now is not read any more
        self._is_reading = False  # a request has begun, and not all of it is here
        self._has_head = False  # of the request that is being read or was last
        self._num_header_bytes = 0  # of the headers that have been parsed
        self._num_head_bytes = 0  # that came since the request's begin or the last part of its body
        self._discarding: asyncio.TimerHandle | None = None  # until when the rest of a refused body may come
        self._begun_s = 0.0  # when the request that is being read began
        self._num_read = 0  # bytes of it

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

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came in time: the connection ends."""
        super().timeout_keep_alive_handler()
        self._see_to_end()

    def on_response_complete(self) -> None:
        """An answer is out, as far as we are concerned."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._see_to_end()
        elif self._is_reading and not self.cycle.keep_alive:
            self._discarding = self.loop.call_later(DISCARD_S, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._see_to_end()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP."""
        super().send_400_response(msg)
        self._see_to_end()

    def pause_writing(self) -> None:
        """asyncio: the client is behind with what it was sent."""
        super().pause_writing()
        self._watch_stalls().start()

    def resume_writing(self) -> None:
        """asyncio: the client has taken nearly all."""
        super().resume_writing()
        self._watch_stalls().caught_up()
        if isinstance(self.cycle, PostExchange):
            self.cycle.caught_up()

    def _see_to_end(self) -> None:
        """Has a connection that was closed really end, once its other end has taken all, or takes too little of it.

        Over TLS the other end should then say that it is done, but need not.
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
        """asyncio: something came."""
        if self._is_over:
            return
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
        if self._is_reading and not self._is_over:
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            elif self._is_slow():
                self._refuse(408, f"the request did not come within {self._body_timeout_s:g} s")
            self._end_soon(self.timeout_keep_alive)

    def _is_slow(self) -> bool:
        """Whether the request that is being read takes too long."""
        time_s = self.loop.time() - self._begun_s
        return time_s > self._body_timeout_s and time_s > self._body_timeout_s + self._num_read / LEAST_BYTES_PER_S

    def _refuse_head(self) -> None:
        """Respond to a head that is too large, and end the connection."""
        self._refuse(431, f"the request's line and headers are over the limit of {MAX_HEAD_BYTES} bytes")

    def _refuse(self, status: int, text: str) -> None:
        """Respond to a request that has not come whole, and end the connection."""
        self._is_over = True
        if not self._has_head or not self._is_answering():
            body = orjson.dumps(error_body(text, "invalid_request_error", None, status))
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINES[status] + head + body)
        self._close()

    def _is_answering(self) -> bool:
        """Whether the request has a response, or is about to have one, before its body is all here."""
        return self.cycle.begun if isinstance(self.cycle, PostExchange) else self.cycle.response_started

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
            return
        self._num_header_bytes += len(name) + len(value) + HEADER_BYTES
        self._check_head_size()
        super().on_header(name, value)

    def _check_head_size(self) -> None:
        """Raise HeadTooLarge. Only bytes of the head count: data received with it may belong to the body."""
        if len(self.url) + self._num_header_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            raise HeadTooLarge

    def on_headers_complete(self) -> None:
        """httptools: the head of a request is here."""
        parser = self.parser
        self._check_head_size()  # for the line, without any header
        self._num_head_bytes = 0
        if parser.should_upgrade():
            return  # it begins again
        route = self._post_route()
        if route is None:
            super().on_headers_complete()
        else:
            self.cycle = exchange = PostExchange(self, route, self._unread, self._cross_origin)
            if not route.is_authorized(exchange):
                exchange.serve()  # refuses it: no body is needed for that
            elif self.expect_100_continue and parser.get_http_version() == "1.1":
                self.transport.write(CONTINUE)
        self._has_head = True
        if self._leaving.is_set():
            self.cycle.keep_alive = False

    def _post_route(self) -> BodyRoute[Any] | None:
        """The route that answers the request on the connection itself; None if it goes over ASGI.

        None of them may: uvicorn streams in chunks, which HTTP/1.0 does not know, and waits for slow clients.
        """
        if self.parser.get_method() != b"POST":
            return None
        return self._posts.get(self.url) or self._posts.get(unquote_to_bytes(httptools.parse_url(self.url).path))

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
            self.cycle.end_body()
            if self.cycle.response_complete and not self.cycle.keep_alive:
                self._close()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is over."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._stall_watch is not None:
            self._stall_watch.stop()
        if self._discarding is not None:
            self._discarding.cancel()
        if isinstance(self.cycle, PostExchange):
            self.cycle.lost()
        self.cycle = None  # type: ignore[assignment]  # it refers to us: without the garbage collector, both would stay

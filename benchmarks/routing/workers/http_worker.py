"""Small HTTP server for simulated workers, with low overhead compared with the router."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import httptools
import orjson

logger = logging.getLogger(__name__)

Fields = dict[str, object]
Handler = Callable[[str, Fields], AsyncGenerator[bytes, None]]


class HttpWorker(asyncio.Protocol):
    """Connection that responds to POSTs with what `stream` yields, and to GETs from `pages`."""

    def __init__(self, pages: dict[str, bytes], stream: Handler) -> None:
        self._pages = pages
        self._stream = stream
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._path = ""
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the start of the connection (asyncio)."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the connection's requests (asyncio)."""
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes (asyncio)."""
        assert self._transport is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()  # not HTTP/1.1

    def on_url(self, url: bytes) -> None:
        """Handle the request's path (httptools)."""
        self._path = url.partition(b"?")[0].decode()
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        """Handle a piece of the body (httptools)."""
        self._body += body

    def on_message_complete(self) -> None:
        """Handle the end of the request (httptools)."""
        assert self._transport is not None
        if self._parser.get_method() == b"POST":
            self._answering = asyncio.ensure_future(self._answer(self._path, orjson.loads(self._body)))
            self._answering.add_done_callback(self._end)
        elif self._path in self._pages:
            page = self._pages[self._path]
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(page)
            self._transport.write(head + page)
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    async def _answer(self, path: str, fields: Fields) -> None:
        assert self._transport is not None
        kind = b"text/event-stream" if fields.get("stream") else b"application/json"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
        async with aclosing(self._stream(path, fields)) as parts:
            async for part in parts:
                self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(part), part))
                head = b""
        self._transport.write(head + b"0\r\n\r\n")

    def _end(self, answering: "asyncio.Task[None]") -> None:
        """Log the error of a failed response and close its connection."""
        if not answering.cancelled() and answering.exception() is not None:
            logger.error("a request failed", exc_info=answering.exception())
            assert self._transport is not None
            self._transport.close()

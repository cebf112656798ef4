"""A small HTTP server for simulated workers, so that they cost little beside the router."""

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
    """One connection; answers POSTs with what `stream` yields, GETs with `pages`."""

    def __init__(self, pages: dict[str, bytes], stream: Handler) -> None:
        self._pages = pages
        self._stream = stream
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._path = ""
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is over, and with it what it asked for."""
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        assert self._transport is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()  # it tries another protocol

    def on_url(self, url: bytes) -> None:
        """httptools: the request's path."""
        self._path = url.partition(b"?")[0].decode()
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        """httptools: a part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """httptools: a request is here."""
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
        """An answer that failed is logged with its reason, and its connection ends."""
        if not answering.cancelled() and answering.exception() is not None:
            logger.error("a request failed", exc_info=answering.exception())
            assert self._transport is not None
            self._transport.close()

"""HTTP/1.1 connection for one request at a time; reading a piece of a response takes microseconds."""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import Protocol, cast

import httptools


class Reader(Protocol):
    """Receiver of a streaming response."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Handle the status and the headers, whose names are in lower case."""
        ...

    def body(self, piece: bytes, now_s: float) -> None:
        """Handle a piece of the body, with its arrival time (`time.perf_counter`)."""
        ...


class Connection(asyncio.Protocol):
    """Connection and parser of its responses; httptools calls the `on_...` methods."""

    def __init__(self) -> None:
        self.is_open = True
        self.idle_since_s = 0.0  # set by the client
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: Reader | None = None
        self._done: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._has_head = False
        self._now_s = 0.0

    async def ask(self, payload: bytes, reader: Reader) -> float:
        """Send a request, read its response, and return the time of sending (`time.perf_counter`).

        Raises ConnectionError if the response is incomplete.
        """
        assert self._transport is not None
        self._reader, self._headers, self._has_head = reader, {}, False
        self._done = asyncio.get_running_loop().create_future()
        sent_s = perf_counter()
        self._transport.write(payload)
        await self._done
        return sent_s

    def close(self) -> None:
        """Close the connection without reading further data."""
        self.is_open = False
        self._reader = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the start of the connection (asyncio)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        """Handle received bytes (asyncio)."""
        self._now_s = perf_counter()
        if self._reader is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"invalid HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection (asyncio), which also ends a body without a length."""
        self.is_open = False
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        if exc is None and self._has_head and not has_length:
            self._finish()
        else:
            self._fail(exc or ConnectionError("the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header (httptools)."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Handle the end of the headers (httptools)."""
        status = self._parser.get_status_code()
        if status < 200:  # an interim response
            self._headers = {}
            return
        self._has_head = True
        if self._reader is not None:
            self._reader.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """Handle a piece of the body (httptools)."""
        if self._reader is not None:
            self._reader.body(body, self._now_s)

    def on_message_complete(self) -> None:
        """Handle the end of the response (httptools)."""
        if self._has_head:
            self.is_open = self.is_open and self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

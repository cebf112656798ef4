"""One HTTP/1.1 connection with at most one request on it; a piece of an answer costs microseconds."""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import Protocol, cast

import httptools


class Reader(Protocol):
    """Takes an answer as it comes."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The status and the headers, their names in small letters."""
        ...

    def body(self, piece: bytes, now_s: float) -> None:
        """A piece of the body, and when it came (`time.perf_counter`)."""
        ...


class Connection(asyncio.Protocol):
    """Owns the parser of its answers; httptools calls its `on_...` methods."""

    def __init__(self) -> None:
        self.is_open = True
        self.idle_since_s = 0.0  # the client's
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: Reader | None = None
        self._done: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._has_head = False
        self._now_s = 0.0

    async def ask(self, payload: bytes, reader: Reader) -> None:
        """Sends a request; returns when its answer has been read. Raises ConnectionError if it does not come whole."""
        assert self._transport is not None
        self._reader, self._headers, self._has_head = reader, {}, False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        await self._done

    def close(self) -> None:
        """Ends the connection; what still comes is not read."""
        self.is_open = False
        self._reader = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: it stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self._now_s = perf_counter()
        if self._reader is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"no HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over, which is also how a body without a length ends."""
        self.is_open = False
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        if exc is None and self._has_head and not has_length:
            self._finish()
        else:
            self._fail(exc or ConnectionError("the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        status = self._parser.get_status_code()
        if status < 200:  # a word in advance
            self._headers = {}
            return
        self._has_head = True
        if self._reader is not None:
            self._reader.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        if self._reader is not None:
            self._reader.body(body, self._now_s)

    def on_message_complete(self) -> None:
        """httptools: the answer is whole."""
        if self._has_head:
            self.is_open = self.is_open and self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

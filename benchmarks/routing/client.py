"""Low-overhead client: prepared requests over keep-alive connections."""

import asyncio
import re
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import cast

REQUEST_TIMEOUT_S = 120.0
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
TEXT = re.compile(rb'"(?:text|content)":"[^"]')  # skips the empty events that some routers send first
PADDING = "\r\nx-padding: "
TAIL_BYTES = 32  # longer than the searched texts, which may arrive in parts
END = b"\r\n0\r\n\r\n"  # end of a chunked body


class Refused(Exception):
    """Unexpected response of the router, whose start is in the text."""


@dataclass(slots=True)
class Answer:
    """Times of a response, in seconds of one clock."""

    sent_s: float
    first_s: float = 0.0  # the first text of a stream
    last_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to the first token."""
        return self.first_s - self.sent_s

    @property
    def total_s(self) -> float:
        """Seconds from the request to the end of the response."""
        return self.last_s - self.sent_s


def post(path: str, body: bytes, num_bytes: int = 0) -> bytes:
    """Return the bytes of a request, padded to `num_bytes` by a meaningless header if it is shorter."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    num_missing = num_bytes - len(head) - len(PADDING) - 4 - len(body)
    padding = PADDING + "x" * num_missing if num_missing > 0 else ""
    return (head + padding).encode() + b"\r\n\r\n" + body


class _Connection(asyncio.Protocol):
    """Connection for one request at a time; bodies are chunked or have a content length."""

    def __init__(self) -> None:
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._answer = Answer(0.0)
        self._head: bytearray | None = None  # until it is whole
        self._tail = b""
        self._num_missing: int | None = None  # remaining bytes of a body with a content length

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail(exc or ConnectionError("the router closed the connection"))

    async def run(self, payload: bytes) -> Answer:
        assert self._transport is not None
        self._head, self._tail = bytearray(), b""
        self._done = self._loop.create_future()
        self._answer = Answer(time.perf_counter())
        self._transport.write(payload)
        await self._done
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, separator, data = bytes(self._head).partition(b"\r\n\r\n")
            if not separator:
                return
            self._head = None
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(Refused((head + data).decode(errors="replace")))
                self.close()
            length = LENGTH.search(head)
            self._num_missing = int(length[1]) if length is not None else None
        if data:
            self._take_body(data)

    def _take_body(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._tail += data
        if not self._answer.first_s and TEXT.search(self._tail):
            self._answer.first_s = now_s
        self._tail = self._tail[-TAIL_BYTES:]
        if self._num_missing is None:
            is_last = self._tail.endswith(END)
        else:
            self._num_missing -= len(data)
            is_last = self._num_missing == 0
        if is_last and self._done is not None and not self._done.done():
            self._answer.last_s = now_s
            self._done.set_result(None)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class Client:
    """Connections to each port, as many as were ever needed concurrently."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[_Connection]] = defaultdict(list)

    async def ask(self, port: int, payload: bytes) -> Answer:
        """Send a prepared request. Raises OSError, Refused or TimeoutError if the response is incomplete."""
        connection = await self._take(port)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                answer = await connection.run(payload)
        except BaseException:
            connection.close()
            raise
        self._idle[port].append(connection)
        return answer

    def close(self) -> None:
        """Close the connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _take(self, port: int) -> _Connection:
        while self._idle[port]:
            connection = self._idle[port].pop()
            if connection.is_open:
                return connection
        return (await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port))[1]

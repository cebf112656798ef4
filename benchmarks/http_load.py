"""HTTP client that sends prepared requests over keep-alive connections, in an open or closed loop.

It is cheap enough to share a core with the measured router.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import cast


@dataclass(slots=True)
class Exchange:
    """One request and the times of its response, on the monotonic clock (uvloop's clock is rounded to ms)."""

    request_id: str
    payload: bytes
    due_s: float = 0.0  # from the load's start; 0 in a closed loop
    may_be_refused: bool = False  # otherwise any status other than 200 is an error
    status: int = 0
    sent_s: float = 0.0
    first_s: float = 0.0  # first bytes of the body
    last_s: float = 0.0
    answer: bytearray = field(default_factory=bytearray)


def post(path: str, request_id: str, body: bytes) -> bytes:
    """Return the bytes of a POST request."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class HttpConnection(asyncio.Protocol):
    """Connection for one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._body_start = self._num_expected = 0  # 0 expected: chunked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the start of the connection (asyncio)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection (asyncio)."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server closed the connection"))

    async def run(self, exchange: Exchange) -> None:
        """Send the request and wait for the whole response."""
        assert self._transport is not None
        self._exchange, self._body_start = exchange, 0
        self._done = self._loop.create_future()
        exchange.sent_s = monotonic()
        self._transport.write(exchange.payload)
        await self._done

    def data_received(self, data: bytes) -> None:
        """Handle received bytes (asyncio)."""
        exchange = self._exchange
        assert exchange is not None
        answer = exchange.answer
        answer += data
        if not self._body_start and not self._read_head(answer):
            return
        if not exchange.first_s and len(answer) > self._body_start:
            exchange.first_s = monotonic()
        ended = len(answer) >= self._num_expected if self._num_expected else answer.endswith(b"\r\n0\r\n\r\n")
        if ended and self._done is not None and not self._done.done():
            exchange.last_s = monotonic()
            self._done.set_result(None)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _read_head(self, answer: bytearray) -> bool:
        end = answer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(answer[:end]).lower()
        assert self._exchange is not None
        self._exchange.status = int(head.split(b" ", 2)[1])
        if self._exchange.status != 200 and not self._exchange.may_be_refused:
            raise RuntimeError(f"the server answered {bytes(answer)!r}")
        _, found, length = head.partition(b"content-length: ")
        self._body_start = end + 4
        self._num_expected = self._body_start + int(length.split(b"\r\n", 1)[0]) if found else 0
        return True


async def run_load(port: int, exchanges: Sequence[Exchange], num_connections: int, timed: bool) -> None:
    """Run all exchanges: if `timed`, each at its time or once a connection is free, otherwise as fast as possible."""
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(HttpConnection, "127.0.0.1", port))[1] for _ in range(num_connections)]
    waiting = deque(exchanges)
    started_s = monotonic()

    async def work(connection: HttpConnection) -> None:
        while waiting:
            exchange = waiting.popleft()
            if timed and (wait_s := started_s + exchange.due_s - monotonic()) > 0:
                await asyncio.sleep(wait_s)
            await connection.run(exchange)

    try:
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(work(connection))
    finally:
        for connection in connections:
            connection.close()

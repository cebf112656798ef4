"""Load of prepared requests over keep-alive connections, in an open or closed loop.

It is cheap enough to share a core with the measured router.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from baton.loadtool.connection import Connection


@dataclass(slots=True)
class Exchange:
    """One request and the times of its response, by `perf_counter` (uvloop's clock is rounded to ms)."""

    request_id: str
    payload: bytes
    due_s: float = 0.0  # from the load's start; 0 in a closed loop
    may_be_refused: bool = False  # otherwise any status other than 200 is an error
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    sent_s: float = 0.0
    first_s: float = 0.0  # first bytes of the body
    last_s: float = 0.0
    error: bytearray = field(default_factory=bytearray)  # body of a response with another status than 200

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Handle the head of the response."""
        self.status, self.headers = status, headers

    def body(self, piece: bytes, now_s: float) -> None:
        """Handle a piece of the body."""
        self.first_s = self.first_s or now_s
        self.last_s = now_s
        if self.status != 200:
            self.error += piece


def post(path: str, body: bytes, header: str = "") -> bytes:
    """Return the bytes of a POST request, with one more header if given."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return "\r\n".join([head, *[header] * bool(header)]).encode() + b"\r\n\r\n" + body


async def run_load(port: int, exchanges: Sequence[Exchange], num_connections: int, timed: bool) -> None:
    """Run all exchanges: if `timed`, each at its time or once a connection is free, otherwise as fast as possible."""
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(num_connections)]
    waiting = deque(exchanges)
    started_s = perf_counter()

    async def work(connection: Connection) -> None:
        while waiting:
            exchange = waiting.popleft()
            if timed and (wait_s := started_s + exchange.due_s - perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            exchange.sent_s = await connection.ask(exchange.payload, exchange)
            if exchange.status != 200 and not exchange.may_be_refused:
                raise RuntimeError(f"the server responded with status {exchange.status}: {bytes(exchange.error)!r}")

    try:
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(work(connection))
    finally:
        for connection in connections:
            connection.close()

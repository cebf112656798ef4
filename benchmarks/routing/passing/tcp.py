"""Pass-through in front of HTTP workers: `python -m benchmarks.routing.passing.tcp PORT URLS`.

Every client connection gets a connection to a worker, round-robin, and bytes are forwarded as they arrive.
"""

import asyncio
import sys
from itertools import cycle
from typing import cast

import uvloop


class _End(asyncio.Protocol):
    """One side of a forwarded connection. Bytes are buffered until the other side is connected."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._other: _End | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
        else:
            self._other.write(data)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def join(self, other: "_End") -> None:
        """Forward to the other side from now on."""
        self._other = other
        for data in self._early:
            other.write(data)


async def main(port: int, urls: list[str]) -> None:
    """Serve until terminated."""
    loop = asyncio.get_running_loop()
    ports = cycle([int(url.rpartition(":")[2]) for url in urls])
    connecting: set[asyncio.Task[None]] = set()

    async def connect(client: _End) -> None:
        _, worker = await loop.create_connection(_End, "127.0.0.1", next(ports))
        worker.join(client)
        client.join(worker)

    def begin() -> _End:
        client = _End()
        task = loop.create_task(connect(client))
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return client

    server = await loop.create_server(begin, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2].split(",")))

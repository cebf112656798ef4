"""A TCP proxy that delays, holds back or corrupts data, or cuts connections."""

import asyncio
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 1 << 16
NUM_GARBLED_BYTES = 8  # enough to change tokens if undetected; flipped low bits of a float might change none
LEAST_GARBLED_BYTES = 1 << 12  # shorter messages may be requests and are not corrupted


class Proxy:
    """The connections between clients and one address."""

    def __init__(self, host: str, port: int) -> None:
        """`host`, `port`: the target."""
        self.port = 0
        self.delay_s = 0.0
        self.is_garbling = False  # corrupt bytes in the middle of long messages
        self.num_garbled = 0
        self._target = host, port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the proxy and its connections."""
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        await self.cut()
        await self._server.wait_closed()

    async def cut(self) -> None:
        """Close every open connection."""
        pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)

    def swallow(self) -> None:
        """Silently hold back all data from now on."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward the data that was held back, and all further data."""
        self._flowing.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        pair = [self._pipe(reader, far_writer), self._pipe(far_reader, writer)]
        pipes = [asyncio.create_task(each) for each in pair]
        self._pipes.update(pipes)
        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
        self._pipes.difference_update(pipes)
        for each in (writer, far_writer):
            each.transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.is_garbling and len(data) >= LEAST_GARBLED_BYTES:
                    data = _garbled(data)
                    self.num_garbled += 1
                writer.write(data)
                await writer.drain()


def _garbled(data: bytes) -> bytes:
    middle = len(data) // 2
    wrong = bytes(byte ^ 0xFF for byte in data[middle : middle + NUM_GARBLED_BYTES])
    return data[:middle] + wrong + data[middle + NUM_GARBLED_BYTES :]

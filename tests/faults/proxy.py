"""A bad network: a TCP forwarder that delays, swallows, garbles or cuts what goes through it."""

import asyncio
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 1 << 16
NUM_GARBLED_BYTES = 8  # so many that tokens are others if nobody notices: low bits of a float would change none
LEAST_GARBLED_BYTES = 1 << 12  # of a message of fewer, nothing is garbled: it may be a request


class Proxy:
    """Owns the connections between clients and one address."""

    def __init__(self, host: str, port: int) -> None:
        """`host`, `port`: where it forwards to."""
        self.port = 0
        self.delay_s = 0.0
        self.is_garbling = False  # in the middle of whatever is long, bytes come out otherwise than they went in
        self.num_garbled = 0
        self._target = host, port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        """Begins to listen."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends it and its connections."""
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        await self.cut()
        await self._server.wait_closed()

    async def cut(self) -> None:
        """Ends every connection that there is."""
        pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)

    def swallow(self) -> None:
        """From now on nothing arrives, and nobody is told."""
        self._flowing.clear()

    def flow(self) -> None:
        """What was swallowed arrives after all."""
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

"""Questions among the router processes that share ports."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

logger = logging.getLogger(__name__)

PEER_TIMEOUT_S = 1.0  # a stopped process must not delay the response of the others


class ProcessSocket:
    """The socket at which a router process responds to the others' questions on a topic, one line each."""

    def __init__(
        self, directory: Path, topic: str, number: int, size: int, respond: Callable[[str], Awaitable[bytes]]
    ) -> None:
        """number: of this process, from 0 to `size` - 1. respond: returns the response; ValueError: none is sent."""
        self._directory = directory
        self._topic = topic
        self._number = number
        self._others = [each for each in range(size) if each != number]
        self._respond = respond
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "ProcessSocket":
        path = self._path(self._number)
        path.unlink(missing_ok=True)  # left by an earlier process
        self._server = await asyncio.start_unix_server(self._serve, path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._path(self._number).unlink(missing_ok=True)

    async def ask(self, line: str = "") -> dict[int, bytes | None]:
        """Return the responses of the other processes by their numbers; None of one that does not respond in time."""
        responses = await asyncio.gather(*(self._ask(number, line) for number in self._others))
        return dict(zip(self._others, responses, strict=True))

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._topic}-{number}.sock"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await self._respond((await reader.readline()).decode().rstrip("\n")))
            await writer.drain()
        except (ConnectionError, ValueError) as error:  # it has gone, or its line is too long or malformed
            logger.debug("a question of another router process on %s got no response: %r", self._topic, error)
        finally:
            await _close(writer)

    async def _ask(self, number: int, line: str) -> bytes | None:
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    writer.write(f"{line}\n".encode())
                    return await reader.read()
                finally:
                    await _close(writer)
        except (OSError, TimeoutError) as error:
            logger.debug("router process %d does not respond: %r", number, error)
            return None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):  # the other end has closed it
        await writer.wait_closed()

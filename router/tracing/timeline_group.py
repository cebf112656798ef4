"""Timelines of the router processes that share ports: a request for one may reach another process than its own."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from baton.router.tracing.timelines import TimelineKey, Timelines

logger = logging.getLogger(__name__)

PEER_TIMEOUT_S = 1.0  # a stopped process must not delay the response of the others


class TimelineGroup:
    """The processes' timelines. Owns the socket at which one of them serves its own to the others."""

    def __init__(self, directory: Path, number: int, size: int, timelines: Timelines) -> None:
        """`number`: of this process, from 0 to `size` - 1."""
        self._directory = directory
        self._number = number
        self._others = [each for each in range(size) if each != number]
        self._timelines = timelines
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "TimelineGroup":
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

    async def find(self, key: TimelineKey) -> bytes | None:
        """Return a timeline of another process; None if none has it."""
        found = await asyncio.gather(*(self._ask(number, key) for number in self._others))
        return next(filter(None, found), None)

    def _path(self, number: int) -> Path:
        return self._directory / f"timelines-{number}.sock"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ValueError):  # it has gone, or its line is too long
            owner, request_id = (await reader.readline()).decode().rstrip("\n").split(" ")
            writer.write(self._timelines.find(TimelineKey(owner, request_id)) or b"")
            await writer.drain()
        await _close(writer)

    async def _ask(self, number: int, key: TimelineKey) -> bytes | None:
        """Return another process's timeline; None if it has none or does not respond."""
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    writer.write(f"{key.owner} {key.request_id}\n".encode())
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

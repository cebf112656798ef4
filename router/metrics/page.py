"""The page of metrics that Prometheus scrapes."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from baton.router.metrics.shared_series import one_page, own_series, pack_series, shared_series, unpack_series
from baton.router.shared_result import SharedResult
from baton.rpc.metrics_format import plain_accept

logger = logging.getLogger(__name__)

PEER_TIMEOUT_S = 1.0  # a stopped process must not delay the response of the others


class ProcessGroup:
    """The router processes that share ports. Owns the socket at which one of them serves its series to the others."""

    def __init__(self, directory: Path, number: int, size: int, series: Collector) -> None:
        """`number`: of this process, from 0 to `size` - 1. `series`: its own and the shared ones."""
        self.number = number
        self._directory = directory
        self._size = size
        self._series = series
        self._packed = SharedResult(self._pack)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "ProcessGroup":
        path = self._path(self.number)
        path.unlink(missing_ok=True)  # left by an earlier process
        self._server = await asyncio.start_unix_server(self._answer, path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._path(self.number).unlink(missing_ok=True)

    async def page(self) -> Collector:
        """Return the series of all processes, and whether each of them responds."""
        others = [number for number in range(self._size) if number != self.number]
        responses = await asyncio.gather(*(self._ask(number) for number in others))
        by_process = {**dict(zip(others, responses, strict=True)), self.number: list(own_series(self._series))}
        return one_page(dict(sorted(by_process.items())), shared_series(self._series))

    def _path(self, number: int) -> Path:
        return self._directory / f"router-{number}.sock"

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await self._packed.get())
            await writer.drain()
        except ConnectionError as error:
            logger.debug("another router process disconnected before it had read the series: %s", error)
        finally:
            await _close(writer)

    async def _pack(self) -> bytes:
        return pack_series(own_series(self._series))

    async def _ask(self, number: int) -> list[Metric] | None:
        """Return another process's own series; None if it does not respond."""
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    return unpack_series(await reader.read())
                finally:
                    await _close(writer)
        except (OSError, TimeoutError, ValueError) as error:
            logger.debug("router process %d does not respond: %r", number, error)
            return None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):  # the other end has closed it
        await writer.wait_closed()


@dataclass(frozen=True, slots=True)
class MetricsText:
    """A page of metrics in one of Prometheus' formats."""

    content: bytes
    media_type: str


class MetricsPage:
    """The series of this router process, or of all processes that share its ports.

    Rendering takes milliseconds on the event loop, so requests share it.
    """

    def __init__(self, series: Collector, group: ProcessGroup | None) -> None:
        self._series = series
        self._group = group
        self._texts: dict[str, SharedResult[MetricsText]] = {}  # by media type, of which there are two

    async def text(self, accept: str) -> MetricsText:
        """Return the page as OpenMetrics if the `accept` header asks for it, otherwise as Prometheus text."""
        encode, media_type = choose_encoder(plain_accept(accept))
        if media_type not in self._texts:
            self._texts[media_type] = SharedResult(partial(self._render, encode, media_type))
        return await self._texts[media_type].get()

    async def _render(self, encode: Callable[[Collector], bytes], media_type: str) -> MetricsText:
        return MetricsText(encode(self._series if self._group is None else await self._group.page()), media_type)

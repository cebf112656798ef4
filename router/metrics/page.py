"""The page of metrics that Prometheus scrapes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from baton.router.metrics.shared_series import one_page, own_series, pack_series, shared_series, unpack_series
from baton.router.process_socket import ProcessSocket
from baton.router.shared_result import SharedResult
from baton.rpc.metrics_format import plain_accept
from baton.rpc.vllm_names import OF_ROUTER, NamedSeries
from baton.settings.names import MetricsNames

logger = logging.getLogger(__name__)


class ProcessGroup:
    """The router processes that share ports. Owns the socket at which one of them serves its series to the others."""

    def __init__(self, directory: Path, number: int, size: int, series: Collector) -> None:
        """`number`: of this process, from 0 to `size` - 1. `series`: its own and the shared ones."""
        self.number = number
        self._series = series
        self._packed = SharedResult(self._pack)
        self._socket = ProcessSocket(directory, "router", number, size, lambda _: self._packed.get())

    async def __aenter__(self) -> "ProcessGroup":
        await self._socket.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._socket.__aexit__(kind, error, trace)

    async def page(self) -> Collector:
        """Return the series of all processes, and whether each of them responds."""
        responses = await self._socket.ask()
        by_process = {number: _unpacked(response) for number, response in responses.items()}
        by_process[self.number] = list(own_series(self._series))
        return one_page(dict(sorted(by_process.items())), shared_series(self._series))

    async def _pack(self) -> bytes:
        return pack_series(own_series(self._series))


def _unpacked(response: bytes | None) -> list[Metric] | None:
    """Return a process's series; None if it does not respond, or was cut off."""
    try:
        return None if response is None else unpack_series(response)
    except ValueError as error:
        logger.debug("the series of a router process are unreadable: %r", error)
        return None


@dataclass(frozen=True, slots=True)
class MetricsText:
    """A page of metrics in one of Prometheus' formats."""

    content: bytes
    media_type: str


class MetricsPage:
    """The series of this router process, or of all processes that share its ports.

    Rendering takes milliseconds on the event loop, so requests share it.
    """

    def __init__(self, series: Collector, group: ProcessGroup | None, names: MetricsNames = "baton") -> None:
        self._series = series
        self._group = group
        self._names = names
        self._texts: dict[str, SharedResult[MetricsText]] = {}  # by media type, of which there are two

    async def text(self, accept: str) -> MetricsText:
        """Return the page as OpenMetrics if the `accept` header asks for it, otherwise as Prometheus text."""
        encode, media_type = choose_encoder(plain_accept(accept))
        if media_type not in self._texts:
            self._texts[media_type] = SharedResult(partial(self._render, encode, media_type))
        return await self._texts[media_type].get()

    async def _render(self, encode: Callable[[Collector], bytes], media_type: str) -> MetricsText:
        series = self._series if self._group is None else await self._group.page()
        return MetricsText(encode(NamedSeries(series, self._names, OF_ROUTER)), media_type)

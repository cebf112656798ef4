"""What Prometheus reads."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from baton.router.metrics.process_group import ProcessGroup
from baton.rpc.metrics_format import plain_accept


@dataclass(frozen=True, slots=True)
class MetricsText:
    """A page of metrics in one of Prometheus' formats."""

    content: bytes
    media_type: str


class MetricsPage:
    """The series of this router process, or of all processes that share its ports."""

    def __init__(self, registry: CollectorRegistry, group: ProcessGroup | None) -> None:
        self._registry = registry
        self._group = group

    async def text(self, accept: str) -> MetricsText:
        """Return the page as OpenMetrics if the `accept` header asks for it, else in Prometheus' text format."""
        encode, media_type = choose_encoder(plain_accept(accept))
        return MetricsText(encode(self._registry if self._group is None else await self._group.page()), media_type)

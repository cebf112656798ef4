"""What Prometheus reads."""

from prometheus_client import CollectorRegistry, generate_latest

from baton.router.process_group import ProcessGroup


class MetricsPage:
    """The series of this router process, or of all processes that share its ports."""

    def __init__(self, registry: CollectorRegistry, group: ProcessGroup | None) -> None:
        self._registry = registry
        self._group = group

    async def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry) if self._group is None else await self._group.page()

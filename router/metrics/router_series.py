"""The series of all models of a router, and of the router itself."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class RouterSeries(Collector):
    """Collector of several others. A family that several of them have appears once, with the samples of all."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = tuple(collectors)

    def collect(self) -> Iterable[Metric]:
        """Return all families. Collectors make new ones each time, so samples can be added to them."""
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for family in collector.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        return families.values()

"""Counter that only the event loop writes."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class LoopCounter(Collector):
    """Counter without a lock, as several are increased for each token."""

    def __init__(self, name: str, text: str, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._value = 0
        registry.register(self)

    def inc(self, num: int = 1) -> None:
        """Increase the count."""
        self._value += num

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the series."""
        family = CounterMetricFamily(self._name, self._text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._value)
        yield family

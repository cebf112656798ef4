"""Counts and distributions that cost next to nothing to keep, and become Prometheus series when they are read.

For one thread: the event loop counts, and answers whoever reads.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Count:
    """A number that grows."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Adds to it."""
        self.value += amount


class Distribution:
    """How many values lay up to each bound, above the one before."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last: above all bounds
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Notes a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class TallySeries(Collector):
    """Owns the tallies of one model, each under its name."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self._counts: dict[str, tuple[str, Count]] = {}
        self._counts_by: dict[str, tuple[str, str, dict[str, Count]]] = {}
        self._distributions: dict[str, tuple[str, Distribution]] = {}

    def count(self, name: str, text: str) -> Count:
        """A new count; `text` says what of."""
        count = Count()
        self._counts[name] = (text, count)
        return count

    def counts_by(self, name: str, text: str, label: str) -> "CountsBy":
        """A new count for each value of a label."""
        counts: dict[str, Count] = {}
        self._counts_by[name] = (text, label, counts)
        return CountsBy(counts)

    def distribution(self, name: str, text: str, bounds: Sequence[float]) -> Distribution:
        """A new distribution."""
        distribution = Distribution(bounds)
        self._distributions[name] = (text, distribution)
        return distribution

    def collect(self) -> Iterator[Metric]:
        """All series as they are now."""
        for name, (text, count) in self._counts.items():
            yield self._counter(name, text, {"": count}, None)
        for name, (text, label, counts) in self._counts_by.items():
            yield self._counter(name, text, counts, label)
        for name, (text, distribution) in self._distributions.items():
            family = HistogramMetricFamily(name, text, labels=tuple(self._labels))
            family.add_metric(tuple(self._labels.values()), _buckets(distribution), distribution.total)
            yield family

    def _counter(self, name: str, text: str, counts: Mapping[str, Count], label: str | None) -> CounterMetricFamily:
        names, values = tuple(self._labels), tuple(self._labels.values())
        family = CounterMetricFamily(name, text, labels=names if label is None else (*names, label))
        for value, count in counts.items():
            family.add_metric(values if label is None else (*values, value), count.value)
        return family


class CountsBy:
    """Counts by one label; a value has one from its first use on."""

    def __init__(self, counts: dict[str, Count]) -> None:
        self._counts = counts

    def inc(self, value: str) -> None:
        """Counts one."""
        count = self._counts.get(value)
        if count is None:
            count = self._counts[value] = Count()
        count.value += 1


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus has them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*distribution.bounds, float("inf")), distribution.counts, strict=True):
        total += count
        text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]  # the library has no type for it
        buckets.append((text, total))
    return buckets

"""Seconds and bytes of completed handovers by transport: kept by decode workers, reported to routers."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from baton.protos.worker_pb2 import HandoverPhase, TransportHandovers

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SECONDS = "baton:handover_seconds"
SECONDS_TEXT = "Seconds of a completed handover, by phase: pull, read, exposed, tail."
BYTES = "baton:handover_read_bytes"
BYTES_TEXT = "Bytes read by completed handovers."
LABELS = ("transport", "phase")


@dataclass(slots=True)
class PhaseSeconds:
    """Histogram of one phase: handovers by their seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count a handover."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class HandoverTimes:
    """Bytes and phases of completed handovers since the start, by transport."""

    def __init__(self) -> None:
        self._num_bytes: dict[str, int] = {}
        self._phases: dict[str, dict[str, PhaseSeconds]] = {}

    def note(self, transport: str, num_bytes: int, phases_s: Mapping[str, float]) -> None:
        """Count a completed handover of that many bytes."""
        self._num_bytes[transport] = self._num_bytes.get(transport, 0) + num_bytes
        phases = self._phases.setdefault(transport, {})
        for phase, seconds in phases_s.items():
            phases.setdefault(phase, PhaseSeconds()).observe(seconds)

    def to_proto(self) -> list[TransportHandovers]:
        """Return a copy for a report."""
        return [
            TransportHandovers(
                transport=transport,
                num_bytes=self._num_bytes[transport],
                phases=[
                    HandoverPhase(phase=name, counts=phase.counts, sum_s=phase.sum_s) for name, phase in phases.items()
                ],
            )
            for transport, phases in self._phases.items()
        ]


class HandoverFamilies:
    """Prometheus families of the handovers of one or several workers."""

    def __init__(self, labels: Iterable[str]) -> None:
        """`labels`: names of the labels of a worker."""
        self._seconds = HistogramMetricFamily(SECONDS, SECONDS_TEXT, labels=(*labels, *LABELS))
        self._bytes = CounterMetricFamily(BYTES, BYTES_TEXT, labels=(*labels, LABELS[0]))

    def add(self, labels: tuple[str, ...], reported: Iterable[TransportHandovers]) -> None:
        """Add a worker's series. A report whose buckets are not `BOUNDS_S`, of another release, has no histogram."""
        for of_transport in reported:
            names = (*labels, of_transport.transport)
            self._bytes.add_metric(names, of_transport.num_bytes)
            for phase in of_transport.phases:
                if len(phase.counts) == len(BOUNDS_S) + 1:
                    self._seconds.add_metric((*names, phase.phase), list(_buckets(phase.counts)), phase.sum_s)

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        """Yield the families."""
        yield from (self._seconds, self._bytes)


def _buckets(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    """Yield upper bounds and numbers of handovers that took at most as long."""
    for bound, count in zip((*BOUNDS_S, float("inf")), accumulate(counts), strict=True):
        yield floatToGoString(bound), count  # type: ignore[no-untyped-call]

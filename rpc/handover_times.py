"""Seconds and bytes of completed handovers by transport: kept by decode workers, reported to routers."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from baton.protos.worker_pb2 import HandoverExemplar, HandoverPhase, TransportHandovers

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SECONDS = "baton:handover_seconds"
SECONDS_TEXT = "Seconds of a completed handover, by phase: pull, read, exposed, tail."
BYTES = "baton:handover_read_bytes"
BYTES_TEXT = "Bytes read by completed handovers."
LABELS = ("transport", "phase")
TRACE_ID_BYTES = 16

Bucket = tuple[str, float] | tuple[str, float, Exemplar]


@dataclass(slots=True)
class PhaseSeconds:
    """Histogram of one phase: handovers by their seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0
    exemplars: dict[int, HandoverExemplar] = field(default_factory=dict)  # the last one of each bucket

    def observe(self, seconds: float, trace_id: bytes | None) -> None:
        """Count a handover. `trace_id`: of its request, if the trace is exported."""
        bucket = bisect_left(BOUNDS_S, seconds)
        self.counts[bucket] += 1
        self.sum_s += seconds
        if trace_id is not None:
            self.exemplars[bucket] = HandoverExemplar(
                bucket=bucket, trace_id=trace_id, seconds=seconds, ended_at_s=time.time()
            )

    def to_proto(self, name: str) -> HandoverPhase:
        """Return a copy for a report, under the phase's name."""
        return HandoverPhase(phase=name, counts=self.counts, sum_s=self.sum_s, exemplars=self.exemplars.values())


class HandoverTimes:
    """Bytes and phases of completed handovers since the start, by transport."""

    def __init__(self) -> None:
        self._num_bytes: dict[str, int] = {}
        self._phases: dict[str, dict[str, PhaseSeconds]] = {}

    def note(
        self, transport: str, num_bytes: int, phases_s: Mapping[str, float], trace_id: bytes | None = None
    ) -> None:
        """Count a completed handover of that many bytes. `trace_id`: of its request, if the trace is exported."""
        self._num_bytes[transport] = self._num_bytes.get(transport, 0) + num_bytes
        phases = self._phases.setdefault(transport, {})
        for phase, seconds in phases_s.items():
            phases.setdefault(phase, PhaseSeconds()).observe(seconds, trace_id)

    def to_proto(self) -> list[TransportHandovers]:
        """Return a copy for a report."""
        return [
            TransportHandovers(
                transport=transport,
                num_bytes=self._num_bytes[transport],
                phases=[phase.to_proto(name) for name, phase in phases.items()],
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
                    self._seconds.add_metric((*names, phase.phase), list(_buckets(phase)), phase.sum_s)

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        """Yield the families."""
        yield from (self._seconds, self._bytes)


def _buckets(phase: HandoverPhase) -> Iterator[Bucket]:
    """Yield upper bounds, numbers of handovers that took at most as long, and exemplars (in OpenMetrics only)."""
    exemplars = {each.bucket: each for each in phase.exemplars if len(each.trace_id) == TRACE_ID_BYTES}
    counts = accumulate(phase.counts)
    for place, (bound_s, count) in enumerate(zip((*BOUNDS_S, float("inf")), counts, strict=True)):
        bound: str = floatToGoString(bound_s)  # type: ignore[no-untyped-call]
        if (last := exemplars.get(place)) is None:
            yield bound, count
        else:
            yield bound, count, Exemplar({"trace_id": last.trace_id.hex()}, last.seconds, last.ended_at_s)

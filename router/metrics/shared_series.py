"""The series of several router processes on one page.

Each process counts separately, and its series get a label with its number. The reader sums them up, and a process that
restarts resets only its own counters. The series of workers and supervisors are the same at every process, and appear
once.
"""

from collections.abc import Iterable, Iterator, Mapping

import orjson
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from baton.router.metrics.metrics import PREFIX
from baton.router.metrics.process_states import NAME_LABEL

PROCESS_LABEL = "process"
WORKER_LABEL = "worker"
SHARED_LABELS = frozenset({WORKER_LABEL, NAME_LABEL})  # labels of series that are the same at every process


def own_series(series: Collector) -> Iterator[Metric]:
    """Return the series that a process counts itself."""
    return (family for family in series.collect() if not _is_shared(family))


def shared_series(series: Collector) -> Iterator[Metric]:
    """Return the series that workers and supervisors report to a process."""
    return (family for family in series.collect() if _is_shared(family))


def _is_shared(family: Metric) -> bool:
    return any(not SHARED_LABELS.isdisjoint(sample.labels) for sample in family.samples)


def pack_series(families: Iterable[Metric]) -> bytes:
    """Serialise families for another process. Values are strings, as JSON has no infinity."""
    return orjson.dumps(
        [(each.name, each.documentation, each.type, [*map(_packed, each.samples)]) for each in families]
    )


def _packed(sample: Sample) -> tuple[str, Mapping[str, str], str, tuple[object, ...] | None]:
    exemplar = None if sample.exemplar is None else tuple(sample.exemplar)
    return sample.name, sample.labels, repr(float(sample.value)), exemplar


def unpack_series(packed: bytes) -> list[Metric]:
    """Deserialise the output of `pack_series`. Raises ValueError if it is truncated, as after the sender's death."""
    families = []
    for name, documentation, kind, samples in orjson.loads(packed):
        family = Metric(name, documentation, kind)
        for sample_name, labels, value, exemplar in samples:
            family.add_sample(sample_name, labels, float(value), exemplar=exemplar and Exemplar(*exemplar))
        families.append(family)
    return families


def one_page(by_process: Mapping[int, Iterable[Metric] | None], shared: Iterable[Metric]) -> Collector:
    """Return the series of each process (None: it did not respond) and the shared ones as one collector."""
    up = GaugeMetricFamily(
        f"{PREFIX}router_process_up",
        "1 for a router process whose series are included, 0 for one that does not respond.",
        labels=(PROCESS_LABEL,),
    )
    merged: dict[str, Metric] = {}
    for process, families in by_process.items():
        up.add_metric((str(process),), families is not None)
        for family in families or ():
            whole = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, PROCESS_LABEL: str(process)}
                whole.add_sample(sample.name, labels, sample.value, exemplar=sample.exemplar)
    return _Families([up, *(family for family in merged.values() if family.samples), *shared])


class _Families(Collector):
    """Collector of families that have been collected before."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families

"""The series of several router processes on one page.

Each process counts for itself, so its series get a label with its number: sums are left to who reads them, and a
process that starts again resets its own counters alone. What the workers and the supervisors report is the same at
every process, and stands on the page once.
"""

from collections.abc import Iterable, Iterator, Mapping

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.router.metrics.metrics import PREFIX
from baton.router.metrics.process_states import NAME_LABEL

PROCESS_LABEL = "process"
WORKER_LABEL = "worker"
SHARED_LABELS = frozenset({WORKER_LABEL, NAME_LABEL})  # of series that are the same at every process


def own_series(registry: CollectorRegistry) -> Iterator[Metric]:
    """What a process counts itself."""
    return (family for family in registry.collect() if not _is_shared(family))


def shared_series(registry: CollectorRegistry) -> Iterator[Metric]:
    """Return what workers and supervisors reported to a process."""
    return (family for family in registry.collect() if _is_shared(family))


def _is_shared(family: Metric) -> bool:
    return any(not SHARED_LABELS.isdisjoint(sample.labels) for sample in family.samples)


def pack_series(families: Iterable[Metric]) -> bytes:
    """Families as one process sends them to another; values as texts, since JSON has no infinity."""

    def samples(family: Metric) -> list[tuple[str, Mapping[str, str], str]]:
        return [(each.name, each.labels, repr(float(each.value))) for each in family.samples]

    return orjson.dumps([(each.name, each.documentation, each.type, samples(each)) for each in families])


def unpack_series(packed: bytes) -> list[Metric]:
    """What `pack_series` packed. Raises ValueError if the sender died while it wrote."""
    families = []
    for name, documentation, kind, samples in orjson.loads(packed):
        family = Metric(name, documentation, kind)
        for sample_name, labels, value in samples:
            family.add_sample(sample_name, labels, float(value))
        families.append(family)
    return families


def one_page(by_process: Mapping[int, Iterable[Metric] | None], shared: Iterable[Metric]) -> Collector:
    """The processes' own series (None: it did not answer) and the shared ones, on one page."""
    up = GaugeMetricFamily(
        f"{PREFIX}router_process_up",
        "1 for a router process whose series are here, 0 for one that does not answer.",
        labels=(PROCESS_LABEL,),
    )
    merged: dict[str, Metric] = {}
    for process, families in by_process.items():
        up.add_metric((str(process),), families is not None)
        for family in families or ():
            whole = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.add_sample(sample.name, {**sample.labels, PROCESS_LABEL: str(process)}, sample.value)
    return _Families([up, *(family for family in merged.values() if family.samples), *shared])


class _Families(Collector):
    """Families that are already collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families

"""Tables of Prometheus series: a router's, with the workers' reports and the autoscaler's plan, and a worker's own."""

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from baton.engine.grammar.figures import GrammarCounters
from baton.engine.outputs import EngineStats, ExpertFigures
from baton.membership.registry.plan_report import PlanReport, PoolPlan
from baton.router.batches.metrics import BatchMetrics
from baton.router.http.app import HttpApp
from baton.router.metrics.shared_series import one_page
from baton.router.service import RouterService
from baton.worker.metrics import WorkerMetrics, WorkerSnapshot
from baton.worker.reporting import WorkerCounters
from scripts.reference.router import read_router
from scripts.reference.tables import code, table

COLUMNS = ("series", "type", "labels", "meaning")
Series = tuple[str, str, tuple[str, ...], str]  # name, type, labels, help


def router_metrics() -> str:
    """Return the table of a router's `/metrics`."""
    return _table(read_router(_of_router))


def worker_metrics() -> str:
    """Return the table of a worker's `/metrics`."""
    return _table(asyncio.run(_of_worker()))


def _table(series: Iterable[Series]) -> str:
    rows = sorted(set(series))
    return table(COLUMNS, ((code(name), kind, ", ".join(map(code, labels)), text) for name, kind, labels, text in rows))


def _of_router(service: RouterService, _app: HttpApp) -> list[Series]:
    [model] = service.models
    pool = PoolPlan(target=1, needed=1, factor=1.0)
    model.plan.latest = PlanReport(application="", model="", time_s=0.0, prefill=pool, decode=pool, reason="")
    BatchMetrics(service.registry, "").watch(lambda: 0)
    registries = (model.metrics.registry, service.registry)
    found = [series for registry in registries for series in _of_registry(registry)]
    return [*found, *(series for family in one_page({0: ()}, ()).collect() for series in _of_family(family))]


def _of_registry(registry: CollectorRegistry) -> Iterator[Series]:
    """Yield the series of all collectors, those that have no values yet included."""
    for collector in list(registry._collector_to_names):
        yield from _of_collector(collector)


def _of_collector(collector: Collector) -> Iterator[Series]:
    if isinstance(collector, MetricWrapperBase):
        labels = tuple(collector._labelnames)
        assert collector._type is not None
        yield _series(collector._name, collector._type, labels, collector._documentation)
        return
    for family in collector.collect():
        yield from _of_family(family)


def _of_family(family: Metric) -> Iterator[Series]:
    labels = tuple(getattr(family, "_labelnames", ()))
    yield _series(family.name, family.type, labels, family.documentation)


def _series(name: str, kind: str, labels: tuple[str, ...], text: str) -> Series:
    return (f"{name}_total" if kind == "counter" else name), kind, labels, text


class _IdleWorker(WorkerMetrics):
    """Metrics of an expert-parallel worker that has computed nothing."""

    async def _snapshot(self) -> WorkerSnapshot:
        stats = EngineStats(0, 0, 0, 1, 1, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, grammars=GrammarCounters())
        return WorkerSnapshot(stats, WorkerCounters(), {}, ExpertFigures(0, 1, [], [], []), False, {}, 0, 0)


async def _of_worker() -> list[Series]:
    host = None  # read by `_snapshot` alone
    metrics = _IdleWorker(host, WorkerCounters(), "", "")  # type: ignore[arg-type]
    families = await asyncio.to_thread(lambda: list(metrics.collect()))
    return [series for family in families for series in _of_family(family)]

"""Prometheus series of the worker pool: numbers of workers, losses, and the router's view of the registry."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from baton.router.metrics.metrics import PREFIX
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool

UNKNOWN_ROLE = "unknown"  # of a worker that is unreachable or has not reported yet
STATES = tuple(state for state in ConnectionState if state is not ConnectionState.CONNECTING)  # of reachable workers
ROLES_AND_STATES = (
    *((role.value, state) for role in WorkerRole for state in STATES),
    (UNKNOWN_ROLE, ConnectionState.CONNECTING),
)


class PoolSeries(Collector):
    """Collector that reads the pool at each scrape. Values are this router's view: do not sum them over routers."""

    def __init__(self, pool: WorkerPool, model_name: str) -> None:
        self._pool = pool
        self._model_name = model_name

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield all series of the pool."""
        yield self._states()
        yield self._losses()
        yield from self._knowledge()

    def _states(self) -> GaugeMetricFamily:
        """Return the numbers of workers, zeros included: alerts for a role without workers need a value."""
        counts = Counter((_role(connection), connection.state) for connection in self._pool.connections)
        gauge = GaugeMetricFamily(
            f"{PREFIX}workers", "Workers by role and state.", labels=("model_name", "role", "state")
        )
        for role, state in ROLES_AND_STATES:
            gauge.add_metric((self._model_name, role, state.value), counts[role, state])
        return gauge

    def _losses(self) -> CounterMetricFamily:
        losses = self._pool.losses
        counter = CounterMetricFamily(
            f"{PREFIX}workers_lost", "Workers that were lost without having drained.", labels=("model_name", "role")
        )
        for role in WorkerRole:
            counter.add_metric((self._model_name, role.value), losses[role])
        return counter

    def _knowledge(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the router's view of the workers and the registry."""
        view = self._pool.view
        for name, text, value in (
            (
                "router_degraded",
                "1 until the router knows the caches of all reachable workers.",
                self._pool.is_degraded,
            ),
            ("registry_connected", "1 while the registry is reachable.", view.error is None),
            ("registry_members", "Workers in the registry, as last listed.", len(view.members) + len(view.fixed)),
            ("registry_malformed", "Malformed entries in the registry, which are ignored.", view.num_malformed),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=("model_name",))
            gauge.add_metric((self._model_name,), value)
            yield gauge


def _role(connection: WorkerConnection) -> str:
    if connection.state is ConnectionState.CONNECTING or connection.description is None:
        return UNKNOWN_ROLE
    return ROLES[connection.description.role].value

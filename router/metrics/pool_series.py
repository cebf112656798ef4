"""How many workers there are, how many were lost, and how well the router knows them, for Prometheus."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from baton.router.metrics.metrics import PREFIX
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES, ConnectionState, WorkerConnection
from baton.router.workers.pool import WorkerPool

UNKNOWN_ROLE = "unknown"  # of a worker that is not in reach, or has not told its load yet
STATES = tuple(state for state in ConnectionState if state is not ConnectionState.CONNECTING)  # of a worker in reach
ROLES_AND_STATES = (
    *((role.value, state) for role in WorkerRole for state in STATES),
    (UNKNOWN_ROLE, ConnectionState.CONNECTING),
)


class PoolSeries(Collector):
    """Reads the pool whenever it is scraped; what it counts is this router's view, so routers' values do not add up."""

    def __init__(self, pool: WorkerPool, model_name: str) -> None:
        self._pool = pool
        self._model_name = model_name

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All series of the pool."""
        yield self._states()
        yield self._losses()
        yield from self._knowledge()

    def _states(self) -> GaugeMetricFamily:
        """Zeros too: an alert for a role without workers needs a number."""
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
        """How well the router knows the workers."""
        view = self._pool.view
        for name, text, value in (
            (
                "router_degraded",
                "1 until the router knows what every worker in reach has cached.",
                self._pool.is_degraded,
            ),
            ("registry_connected", "1 while the registry can be asked.", view.error is None),
            ("registry_members", "Workers in the registry, as last listed.", len(view.members) + len(view.fixed)),
            ("registry_malformed", "Entries in the registry that are no workers and are left out.", view.num_malformed),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=("model_name",))
            gauge.add_metric((self._model_name,), value)
            yield gauge


def _role(connection: WorkerConnection) -> str:
    if connection.state is ConnectionState.CONNECTING or connection.description is None:
        return UNKNOWN_ROLE
    return ROLES[connection.description.role].value

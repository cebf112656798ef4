"""Construction of the admission from a router's options."""

from prometheus_client import CollectorRegistry

from baton.router.admission.admission import Admission
from baton.router.admission.inflight_limit import AdmissionLimits
from baton.router.admission.metrics import AdmissionMetrics
from baton.router.config import RouterConfig
from baton.router.metrics.traffic import Arrivals
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES, ConnectionState, WorkerConnection
from baton.router.workers.pool import WorkerPool


class PoolCapacity:
    """Capacity of a pool's decode workers; implements `Capacity`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def num_seqs(self) -> int | None:
        """Return the sum of the ready decode workers' `max_num_seqs`; None if one does not report it.

        A draining worker counts with the requests that it still runs for this router.
        """
        decoders = [each for each in self._pool.reached if _decodes(each)]
        num_seqs, num_ready = 0, 0
        for connection in decoders:
            description = connection.description
            if connection.state.is_draining:
                num_seqs += connection.load.num_own_requests
            elif description is not None and not description.max_num_seqs:
                return None
            elif description is not None:
                num_ready += 1
                num_seqs += description.max_num_seqs
        return num_seqs if num_ready else 0

    async def wait_change(self, timeout_s: float) -> None:
        """Wait until a worker joins or leaves, or for the timeout. Raises the error that the pool ended with."""
        await self._pool.wait_change(timeout_s)


def _decodes(connection: WorkerConnection) -> bool:
    description = connection.description
    if description is None or connection.state is ConnectionState.CONNECTING:
        return False
    return ROLES[description.role] is not WorkerRole.PREFILL


def make_admission(config: RouterConfig, pool: WorkerPool, registry: CollectorRegistry, model_name: str) -> Admission:
    """Return the admission to the workers of the pool, with its metrics in `registry`."""
    limits = AdmissionLimits(
        max_inflight=config.max_inflight,
        max_queue=config.max_queue,
        default_timeout_s=config.default_timeout_s,
        max_wait_s=config.max_queue_wait_s,
        no_worker_timeout_s=config.failover_timeout_s,
    )
    arrivals = Arrivals(config.traffic_window_s)
    return Admission(limits, PoolCapacity(pool), AdmissionMetrics(registry, model_name), arrivals)

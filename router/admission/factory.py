"""Admission as a router's options have it."""

from prometheus_client import CollectorRegistry

from baton.router.admission.admission import Admission
from baton.router.admission.arrivals import Arrivals
from baton.router.admission.limits import AdmissionLimits
from baton.router.admission.metrics import AdmissionMetrics
from baton.router.admission.pool_capacity import PoolCapacity
from baton.router.config import RouterConfig
from baton.router.workers.pool import WorkerPool


def make_admission(config: RouterConfig, pool: WorkerPool, registry: CollectorRegistry, model_name: str) -> Admission:
    """Admission to the workers of the pool, its series in the registry."""
    limits = AdmissionLimits(
        max_inflight=config.max_inflight,
        max_queue=config.max_queue,
        default_timeout_s=config.default_timeout_s,
        max_wait_s=config.max_queue_wait_s,
        no_worker_timeout_s=config.failover_timeout_s,
    )
    arrivals = Arrivals(config.traffic_window_s)
    return Admission(limits, PoolCapacity(pool), AdmissionMetrics(registry, model_name), arrivals)

"""Admission as a router's options have it."""

from prometheus_client import CollectorRegistry

from baton.router.admission import Admission
from baton.router.admission_limits import AdmissionLimits
from baton.router.admission_metrics import AdmissionMetrics
from baton.router.arrivals import Arrivals
from baton.router.config import RouterConfig
from baton.router.pool_capacity import PoolCapacity
from baton.router.worker_pool import WorkerPool


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

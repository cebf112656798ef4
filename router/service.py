"""What the router's front ends work with, put together."""

import uuid
from dataclasses import dataclass

from router.admission import Admission
from router.cluster import RoutedRequest
from router.config import RouterConfig
from router.dispatcher import Dispatcher, FailoverLimits
from router.errors import NoWorker
from router.metrics import RouterMetrics
from router.model_info import ModelInfo, read_model_info
from router.pipeline import Pipeline
from router.policy import Policy, make_policy
from router.tokenizer import Tokenizer
from router.worker_pool import WorkerPool
from router.worker_series import WorkerSeries
from rpc.status import NotFound


@dataclass(frozen=True, slots=True)
class RouterService:
    """The parts of one router."""

    config: RouterConfig
    model: ModelInfo
    tokenizer: Tokenizer
    pool: WorkerPool
    policy: Policy
    admission: Admission
    metrics: RouterMetrics
    pipeline: Pipeline

    def check_model(self, name: str | None) -> None:
        """Raises NotFound if a request is for another model than the one served."""
        if name and name != self.model.name:
            raise NotFound(f"The model `{name}` does not exist; this server has `{self.model.name}`.")

    def is_ready(self) -> bool:
        """Whether a request would be served now."""
        if self.admission.draining:
            return False
        try:
            self.policy(RoutedRequest(1), self.pool.snapshot())
        except NoWorker:
            return False
        return True


def make_service(config: RouterConfig) -> RouterService:
    """Reads the model's files and puts the parts together; nothing runs yet, but an event loop must."""
    tokenizer = Tokenizer(config.model)
    model = read_model_info(config.model, config.model_name)
    pool = WorkerPool(config.workers, f"router-{uuid.uuid4().hex[:12]}", config.watch_interval_ms)
    policy = make_policy(config.policy, config.local_prefill_below)
    admission = Admission(config.max_inflight)
    metrics = RouterMetrics(model.name)
    metrics.inflight.set_function(lambda: admission.num_inflight)
    metrics.registry.register(WorkerSeries(pool, model.name))
    limits = FailoverLimits(config.failover_attempts, config.failover_timeout_s)
    dispatcher = Dispatcher(pool, policy, limits, metrics)
    pipeline = Pipeline(model, tokenizer, pool, dispatcher, metrics)
    return RouterService(config, model, tokenizer, pool, policy, admission, metrics, pipeline)

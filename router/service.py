"""What the router's front ends work with, put together."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from router.admission import Admission
from router.admission_factory import make_admission
from router.cluster import RoutedRequest
from router.config import RouterConfig
from router.dispatcher import Dispatcher, FailoverLimits
from router.errors import NoWorker
from router.metrics import RouterMetrics
from router.metrics_page import MetricsPage
from router.model_info import ModelInfo, read_model_info
from router.named_policies import make_policy
from router.pipeline import Pipeline
from router.policy import Policy
from router.process_group import ProcessGroup
from router.tokenizer import Tokenizer
from router.worker_pool import WorkerPool
from router.worker_series import WorkerSeries
from rpc.registry.factory import open_registry
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
    group: ProcessGroup | None  # of the processes that share our ports
    metrics_page: MetricsPage

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
    registry = open_registry(config.registry, config.workers)
    pool = WorkerPool(registry, model.name, f"router-{uuid.uuid4().hex[:12]}", config.watch_interval_ms)
    policy = make_policy(config.policy, config.local_prefill_below)
    metrics = RouterMetrics(model.name)
    admission = make_admission(config, pool, metrics.registry, model.name)
    metrics.inflight.set_function(lambda: admission.num_inflight)
    metrics.registry.register(WorkerSeries(pool, model.name))
    limits = FailoverLimits(config.failover_attempts, config.failover_timeout_s)
    dispatcher = Dispatcher(pool, policy, limits, metrics)
    pipeline = Pipeline(model, tokenizer, pool, dispatcher, metrics, config.default_timeout_s)
    group = _make_group(config, metrics)
    page = MetricsPage(metrics.registry, group)
    return RouterService(config, model, tokenizer, pool, policy, admission, metrics, pipeline, group, page)


def _make_group(config: RouterConfig, metrics: RouterMetrics) -> ProcessGroup | None:
    if config.process is None or config.group_dir is None:
        return None
    return ProcessGroup(Path(config.group_dir), config.process, config.processes, metrics.registry)

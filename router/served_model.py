"""One of the models that a router serves."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.vocabulary import vocabulary_digest
from baton.membership.registry.factory import open_registry
from baton.router.adapters.adapter import Adapter
from baton.router.adapters.catalog import AdapterCatalog
from baton.router.adapters.directory import AdapterDirectory
from baton.router.adapters.factory import open_table
from baton.router.adapters.module import read_module
from baton.router.admission.admission import Admission
from baton.router.admission.inflight_limit import AdmissionLimits
from baton.router.admission.metrics import AdmissionMetrics
from baton.router.admission.shared_places import SharedPlaces
from baton.router.config import RouterConfig
from baton.router.dispatch.dispatcher import Dispatcher
from baton.router.dispatch.embedder import Embedder
from baton.router.dispatch.first_worker import FirstWorker
from baton.router.dispatch.retries import FailoverLimits
from baton.router.errors import NoWorker
from baton.router.images.base import PromptImages
from baton.router.images.factory import make_prompt_images
from baton.router.metrics.adapter_series import AdapterRequests
from baton.router.metrics.metrics import PREFIX, RouterMetrics
from baton.router.metrics.plan_series import PlanSeries
from baton.router.metrics.pool_series import PoolSeries
from baton.router.metrics.pools_report import PoolsReporter
from baton.router.metrics.traffic import Arrivals
from baton.router.metrics.worker_series import WorkerSeries
from baton.router.model_info import ModelInfo, read_model_info
from baton.router.model_options import ModelOptions
from baton.router.output.format import OutputFormat, find_output_format
from baton.router.pins.keeper import PinKeeper
from baton.router.pipeline import Pipeline
from baton.router.policy.cluster import RoutedRequest
from baton.router.policy.cost_model import CostModel
from baton.router.policy.named_policies import make_policy
from baton.router.policy.policy import Policy
from baton.router.policy.targets import Targets
from baton.router.text.tokenizer import Tokenizer
from baton.router.workers.connection import WorkerConnection
from baton.router.workers.pool import WorkerPool
from baton.router.workers.worker_models import WorkerModels
from baton.rpc.tls import Security


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its tokenizer, its queue and its workers."""

    info: ModelInfo
    tokenizer: Tokenizer
    images: PromptImages
    output_format: OutputFormat  # of chat completions
    pool: WorkerPool
    policy: Policy
    admission: Admission
    metrics: RouterMetrics
    pipeline: Pipeline
    embedder: Embedder
    reporter: PoolsReporter
    plan: PlanSeries
    first_worker: FirstWorker
    pins: PinKeeper
    catalog: AdapterCatalog | None = None  # of its adapters; None: it takes none
    adapter: Adapter | None = None  # used by the requests of this view of the model; None: the model itself

    def with_adapter(self, adapter: Adapter) -> "ServedModel":
        """Return the same model with an adapter."""
        return replace(self, adapter=adapter)

    def begin_drain(self) -> None:
        """Hold no request for a first worker any more: other routers can hold them for longer."""
        self.first_worker.end()
        self.admission.begin_drain()

    @property
    def name(self) -> str:
        """The name for clients."""
        return self.info.name if self.adapter is None else self.adapter.name

    def is_ready(self) -> bool:
        """Return whether a request would be served now, or wait for a worker that is about to start."""
        if self.admission.draining or not self.pins.is_settled:
            return False
        try:
            self.policy(RoutedRequest(1, adapter=self.adapter), self.pool.snapshot().having(self.adapter))
        except NoWorker:
            if self.admission.limits.waits_for_worker and self.pool.is_sound:
                return True
            return self.embedder.is_ready  # without decode workers, only embeddings
        return True


@dataclass(frozen=True, slots=True)
class ModelMaker:
    """Makes the served models of a router from what they share."""

    config: RouterConfig
    security: Security
    worker_models: WorkerModels
    places: SharedPlaces | None  # None: the router serves one model

    def make(self, options: ModelOptions) -> ServedModel:
        """Read a model's files and construct its parts. Starts no task, but needs a running event loop."""
        config = self.config
        directory = str(checkpoint_directory(Path(options.directory), with_tokenizer=options.tokenizer is None))
        tokenizer = Tokenizer(options.tokenizer or directory)
        vocabulary = vocabulary_digest(Path(options.tokenizer or directory))
        info = read_model_info(directory, options.name, options.hf_overrides)
        images = make_prompt_images(info, Path(directory), config)
        router_id = f"router-{uuid.uuid4().hex[:12]}"  # of its own: each model has its own report in the registry
        registry = open_registry(config.registry, config.workers)
        interval_ms = config.watch_interval_ms
        pool = WorkerPool(registry, info.name, router_id, interval_ms, self.security, self.worker_models, vocabulary)
        targets = _targets(config)
        metrics = RouterMetrics(info.name, config.traffic_window_s, targets)
        metrics.registry.register(WorkerSeries(pool, info.name))
        metrics.registry.register(PoolSeries(pool, info.name))
        if config.metrics_names != "baton":
            metrics.registry.register(
                AdapterRequests(metrics.live, info.name, lambda: max_loras(pool.connections), PREFIX)
            )
        plan = PlanSeries(registry, info.name)
        metrics.registry.register(plan)
        policy = make_policy(config.policy, config.local_prefill_below, targets)
        cold_start_s = config.cold_start_timeout_s
        wait_s = None if cold_start_s is None else max(config.failover_timeout_s, cold_start_s)
        first_worker = FirstWorker(pool, wait_s)
        admission = self._admission(pool, metrics, first_worker)
        metrics.inflight.set_function(lambda: admission.num_inflight)
        limits = FailoverLimits(config.failover_attempts, config.failover_timeout_s)
        dispatcher = Dispatcher(pool, policy, limits, metrics, first_worker)
        pipeline = Pipeline(info, tokenizer, images, pool, dispatcher, metrics, first_worker)
        return ServedModel(
            info=info,
            tokenizer=tokenizer,
            images=images,
            output_format=find_output_format(options, tokenizer),
            pool=pool,
            policy=policy,
            admission=admission,
            metrics=metrics,
            pipeline=pipeline,
            embedder=Embedder(pool, CostModel(targets=targets), limits, metrics),
            reporter=PoolsReporter(router_id, pool, admission, metrics, first_worker),
            plan=plan,
            first_worker=first_worker,
            pins=PinKeeper(pool, pipeline, admission),
            catalog=self._catalog(info.name, pool, first_worker),
        )

    def _catalog(self, name: str, pool: WorkerPool, first_worker: FirstWorker) -> AdapterCatalog | None:
        config, first = self.config, self.worker_models.names[0]
        if not config.enable_lora:
            return None
        modules = [each for each in map(read_module, config.lora_modules) if (each.base_model_name or first) == name]
        directory = AdapterDirectory(config.lora_dir) if config.lora_dir is not None else None
        table = open_table(config, name)
        return AdapterCatalog(pool, table, directory, modules, first_worker, loads_on_use=name == first)

    def _admission(self, pool: WorkerPool, metrics: RouterMetrics, first_worker: FirstWorker) -> Admission:
        config, cold_start_s = self.config, self.config.cold_start_timeout_s
        limits = AdmissionLimits(
            max_inflight=config.max_model_inflight,
            max_queue=config.max_queue,
            max_wait_s=config.max_queue_wait_s,
            no_worker_timeout_s=max(config.failover_timeout_s, cold_start_s or 0.0),
            waits_for_worker=cold_start_s is not None,
        )
        arrivals = Arrivals(config.traffic_window_s)
        own_metrics = AdmissionMetrics(
            metrics.registry, metrics.model_name, lambda: first_worker.num_waiting, metrics.recent.refused
        )
        return Admission(limits, pool, own_metrics, arrivals, places=self.places)


def _targets(config: RouterConfig) -> Targets | None:
    promised_s = config.promised_s()
    return Targets(promised_s["ttft"], promised_s["tpot"]) if promised_s else None


def max_loras(connections: Iterable[WorkerConnection]) -> int:
    """Return the largest number of adapters in a step of any worker; 0: none has adapters."""
    descriptions = (connection.description for connection in connections)
    return max((each.adapters.max_loras for each in descriptions if each is not None), default=0)

"""The parts of a router that its front ends share."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from baton.membership.registry.factory import open_registry
from baton.router.admission.admission import Admission
from baton.router.admission.body_budget import BodyBudget, make_body_budget
from baton.router.admission.inflight_limit import AdmissionLimits
from baton.router.admission.metrics import AdmissionMetrics
from baton.router.admission.unread_output import UnreadLimits, UnreadMetrics, UnreadOutput
from baton.router.auth.api_key import unnamed_key
from baton.router.auth.cache_secret import CacheSecret
from baton.router.auth.client import Gate, KeyRing
from baton.router.auth.keys_file import KeysFile
from baton.router.batches.folder import BatchFolder
from baton.router.config import RouterConfig
from baton.router.dispatch.dispatcher import Dispatcher, FailoverLimits
from baton.router.dispatch.embedder import Embedder
from baton.router.errors import NoWorker
from baton.router.files.store import FileStore, open_files
from baton.router.metrics.metrics import RouterMetrics
from baton.router.metrics.page import MetricsPage, ProcessGroup
from baton.router.metrics.pool_series import PoolSeries
from baton.router.metrics.pools_report import PoolsReporter
from baton.router.metrics.process_states import ProcessStates
from baton.router.metrics.traffic import Arrivals
from baton.router.metrics.worker_series import WorkerSeries
from baton.router.model_info import ModelInfo, read_model_info
from baton.router.output.format import OutputFormat, find_output_format
from baton.router.pipeline import Pipeline
from baton.router.policy.cluster import RoutedRequest
from baton.router.policy.cost_model import CostModel
from baton.router.policy.named_policies import make_policy
from baton.router.policy.policy import Policy
from baton.router.policy.targets import Targets
from baton.router.responses.store.base import ResponseStore
from baton.router.responses.store.factory import open_store
from baton.router.text.tokenizer import Tokenizer
from baton.router.workers.pool import WorkerPool
from baton.rpc.tls import Security, make_security


@dataclass(frozen=True, slots=True)
class RouterService:
    """The parts of one router."""

    config: RouterConfig
    gate: Gate
    cache_secret: CacheSecret | None  # None: all clients share cached prompts
    model: ModelInfo
    tokenizer: Tokenizer
    output_format: OutputFormat  # of chat completions
    security: Security  # of connections to other processes
    pool: WorkerPool
    policy: Policy
    admission: Admission
    body_budget: BodyBudget
    unread: UnreadOutput
    metrics: RouterMetrics
    pipeline: Pipeline
    embedder: Embedder
    response_store: ResponseStore | None  # None: no responses are stored
    files: FileStore | None  # None: no files are stored
    batch_folder: BatchFolder | None  # next to the files
    group: ProcessGroup | None  # the processes that share the ports; None: a single process
    metrics_page: MetricsPage
    reporter: PoolsReporter
    processes: ProcessStates

    def is_ready(self) -> bool:
        """Return whether a request would be served now."""
        if self.admission.draining:
            return False
        try:
            self.policy(RoutedRequest(1), self.pool.snapshot())
        except NoWorker:
            return self.embedder.is_ready  # without decode workers, only embeddings
        return True


def make_service(config: RouterConfig) -> RouterService:
    """Read the model's files and construct the parts. Starts no task, but needs a running event loop."""
    secret = CacheSecret(config.cache_secret) if config.needs_key and not config.shared_cache else None
    gate = _make_gate(config, secret)
    tokenizer = Tokenizer(config.model)
    model = read_model_info(config.model, config.model_name)
    registry = open_registry(config.registry, config.workers)
    router_id = f"router-{uuid.uuid4().hex[:12]}"
    security = make_security(config.tls_cert, config.tls_key, config.tls_ca, config.tls_server_name)
    pool = WorkerPool(registry, model.name, router_id, config.watch_interval_ms, security)
    policy = make_policy(config.policy, config.local_prefill_below, _targets(config))
    metrics = RouterMetrics(model.name, config.traffic_window_s)
    admission_metrics = AdmissionMetrics(metrics.registry, model.name)
    admission = Admission(_admission_limits(config), pool, admission_metrics, Arrivals(config.traffic_window_s))
    unread = UnreadOutput(_unread_limits(config), UnreadMetrics(metrics.registry, model.name))
    metrics.inflight.set_function(lambda: admission.num_inflight)
    metrics.registry.register(WorkerSeries(pool, model.name))
    metrics.registry.register(PoolSeries(pool, model.name))
    processes = ProcessStates(config)
    metrics.registry.register(processes)
    limits = FailoverLimits(config.failover_attempts, config.failover_timeout_s)
    dispatcher = Dispatcher(pool, policy, limits, metrics)
    pipeline = Pipeline(model, tokenizer, pool, dispatcher, metrics)
    embedder = Embedder(pool, CostModel(targets=_targets(config)), limits, metrics)
    group = _make_group(config, metrics)
    files = open_files(config)
    return RouterService(
        config=config,
        gate=gate,
        cache_secret=secret,
        model=model,
        tokenizer=tokenizer,
        output_format=find_output_format(config, tokenizer),
        security=security,
        pool=pool,
        policy=policy,
        admission=admission,
        body_budget=make_body_budget(config, metrics),
        unread=unread,
        metrics=metrics,
        pipeline=pipeline,
        embedder=embedder,
        response_store=open_store(config),
        files=files,
        batch_folder=None if files is None else BatchFolder(files.folder),
        group=group,
        metrics_page=MetricsPage(metrics.registry, group),
        reporter=PoolsReporter(router_id, pool, admission, metrics),
        processes=processes,
    )


def _admission_limits(config: RouterConfig) -> AdmissionLimits:
    return AdmissionLimits(
        max_inflight=config.max_inflight,
        max_queue=config.max_queue,
        max_wait_s=config.max_queue_wait_s,
        no_worker_timeout_s=config.failover_timeout_s,
    )


def _unread_limits(config: RouterConfig) -> UnreadLimits:
    return UnreadLimits(
        request_bytes=config.max_request_unread_bytes,
        key_bytes=config.max_key_unread_bytes,
        router_bytes=config.max_unread_bytes,
    )


def _targets(config: RouterConfig) -> Targets | None:
    promised_s = config.promised_s()
    return Targets(promised_s["ttft"], promised_s["tpot"]) if promised_s else None


def _make_gate(config: RouterConfig, secret: CacheSecret | None) -> Gate:
    """Raises InvalidKeysFile."""
    if not config.needs_key:
        return Gate(None)
    file = KeysFile(config.api_keys_file) if config.api_keys_file is not None else None
    ring = KeyRing([unnamed_key(each) for each in config.api_key or ()], file, secret)
    return Gate(ring, config.protects_operations)


def _make_group(config: RouterConfig, metrics: RouterMetrics) -> ProcessGroup | None:
    if config.process is None or config.group_dir is None:
        return None
    return ProcessGroup(Path(config.group_dir), config.process, config.processes, metrics.registry)

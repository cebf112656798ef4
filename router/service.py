"""The parts of a router that its front ends share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from baton.router.admission.body_budget import BodyBudget, make_body_budget
from baton.router.admission.shared_places import SharedPlaces
from baton.router.admission.unread_output import UnreadLimits, UnreadMetrics, UnreadOutput
from baton.router.auth.api_key import unnamed_key
from baton.router.auth.cache_secret import CacheSecret
from baton.router.auth.client import Gate, KeyRing
from baton.router.auth.keys_file import KeysFile
from baton.router.batches.folder import BatchFolder
from baton.router.config import RouterConfig
from baton.router.files.store import FileStore, open_files
from baton.router.metrics.page import MetricsPage, ProcessGroup
from baton.router.metrics.process_states import ProcessStates
from baton.router.metrics.router_series import RouterSeries
from baton.router.responses.store.base import ResponseStore
from baton.router.responses.store.factory import open_store
from baton.router.served_model import ModelMaker
from baton.router.served_models import ServedModels
from baton.router.tracing.recording import Recording, open_recording
from baton.router.workers.worker_models import WorkerModels
from baton.rpc.tls import Security, make_security


@dataclass(frozen=True, slots=True)
class RouterService:
    """The parts of one router, shared by its models."""

    config: RouterConfig
    gate: Gate
    cache_secret: CacheSecret | None  # None: all clients share cached prompts
    models: ServedModels
    security: Security  # of connections to other processes
    body_budget: BodyBudget
    unread: UnreadOutput
    response_store: ResponseStore | None  # None: no responses are stored
    files: FileStore | None  # None: no files are stored
    batch_folder: BatchFolder | None  # next to the files
    registry: CollectorRegistry  # of the series that do not belong to one of several models
    group: ProcessGroup | None  # the processes that share the ports; None: a single process
    metrics_page: MetricsPage
    processes: ProcessStates
    recording: Recording | None = None  # None: no request is recorded

    @property
    def draining(self) -> bool:
        """Whether new requests are rejected."""
        return any(model.admission.draining for model in self.models)

    def is_ready(self) -> bool:
        """Return whether a request to some model would be served now."""
        return any(model.is_ready() for model in self.models)


def make_service(config: RouterConfig) -> RouterService:
    """Read the models' files and construct the parts. Starts no task, but needs a running event loop."""
    secret = CacheSecret(config.cache_secret) if config.needs_key and not config.shared_cache else None
    gate = _make_gate(config, secret)
    security = make_security(config.tls_cert, config.tls_key, config.tls_ca, config.tls_server_name)
    names = [options.name for options in config.models]
    places = SharedPlaces(config.max_inflight, len(names)) if len(names) > 1 else None
    maker = ModelMaker(config, security, WorkerModels(names), places)
    models = [maker.make(options) for options in config.models]
    registry, label = CollectorRegistry(), shared_label(names)
    unread = UnreadOutput(_unread_limits(config), UnreadMetrics(registry, label))
    processes = ProcessStates(config)
    registry.register(processes)
    body_budget = make_body_budget(config, registry, label)
    series = RouterSeries([*(model.metrics.registry for model in models), registry])
    group = _make_group(config, series)
    files = open_files(config)
    return RouterService(
        config=config,
        gate=gate,
        cache_secret=secret,
        models=ServedModels(models),
        security=security,
        body_budget=body_budget,
        unread=unread,
        response_store=open_store(config),
        files=files,
        batch_folder=None if files is None else BatchFolder(files.folder),
        registry=registry,
        group=group,
        metrics_page=MetricsPage(series, group, config.metrics_names),
        processes=processes,
        recording=open_recording(config),
    )


def shared_label(names: Sequence[str]) -> str:
    """Return the label `model_name` of the series that do not belong to one of several models."""
    return names[0] if len(names) == 1 else ""


def _unread_limits(config: RouterConfig) -> UnreadLimits:
    return UnreadLimits(
        request_bytes=config.max_request_unread_bytes,
        key_bytes=config.max_key_unread_bytes,
        router_bytes=config.max_unread_bytes,
    )


def _make_gate(config: RouterConfig, secret: CacheSecret | None) -> Gate:
    """Raises InvalidKeysFile."""
    if not config.needs_key:
        return Gate(None)
    file = KeysFile(config.api_keys_file) if config.api_keys_file is not None else None
    keys = [unnamed_key(each, is_admin=config.admin_api_key is None) for each in config.api_key or ()]
    keys += [unnamed_key(each, is_admin=True) for each in config.admin_api_key or ()]
    ring = KeyRing(keys, file, secret)
    return Gate(ring, config.protects_operations)


def _make_group(config: RouterConfig, series: Collector) -> ProcessGroup | None:
    if config.process is None or config.group_dir is None:
        return None
    return ProcessGroup(Path(config.group_dir), config.process, config.processes, series)

"""Plan of a cluster on one machine: its processes and their configs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton.deployment.local.cluster_config import ClusterConfig, ClusterSettings
from baton.deployment.local.gpus import place_on_gpus
from baton.deployment.local.lora_paths import with_lora_paths
from baton.deployment.local.machine import Machine, NearCores
from baton.engine.checkpoint.config_overrides import how_to_extend
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.execution.cores import format_cores, parse_cores
from baton.engine.execution.visible_gpus import visible_gpus
from baton.engine.kv.dtype import default_kv_bytes, kv_cache_dtype
from baton.engine.kv.state_layout import check_recurrent
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.speculation.drafts import draft_of
from baton.extras import NIXL, OPENTELEMETRY
from baton.membership.rendezvous.config import RendezvousConfig
from baton.process.child import ProcessSpec
from baton.process.host_memory import HostMemory
from baton.process.log_settings import DEFAULT_LOG, LogSettings
from baton.router.auth.cache_secret import new_cache_secret
from baton.router.config import RouterConfig
from baton.router.secrets import without_secrets
from baton.rpc.unix_sockets import unix_address
from baton.settings.flags import flags_of
from baton.settings.names import REGISTRY, Role, host_port
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from baton.worker.device import require_gpus
from baton.worker.memory import memory_need, with_weights_memory

WORKER_HOST = "127.0.0.1"  # for KV reads over TCP
RENDEZVOUS = "rendezvous"
SHARED = ("drain_timeout_s", "metrics_names", "otlp_traces_endpoint")  # options of the workers that the router has too
ROLES: tuple[Role, ...] = ("prefill", "decode", "both")
# The module that Python runs, and its first argument.
WORKER_COMMAND = ("baton", "worker")
# glibc's allocator settings for workers.
ALLOCATOR = {
    # Keep freed memory in the allocator: tensors are freed after every step, and new pages would fault each time.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the largest value that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # Every step reads all weights; huge pages make that 20% faster if the kernel's THP setting is `madvise`.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The configs of a cluster's processes."""

    router: RouterConfig
    workers: tuple[WorkerConfig, ...]
    rendezvous: RendezvousConfig | None = None  # None: no worker groups
    log: LogSettings = DEFAULT_LOG

    @property
    def url(self) -> str:
        """The router's URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.router.host, self.router.host)
        return f"{self.router.scheme}://{host_port(host, self.router.port)}"

    def specs(self, log_dir: Path) -> list[ProcessSpec]:
        """Return the processes of the router and the workers, the router first."""
        command = ("baton", "router") if self.router.processes > 1 else ("baton.router",)
        config, secrets = without_secrets(self.router)
        router = _spec("router", [*command, *self.log.flags, *flags_of(config)], log_dir, secrets)
        if self.router.processes == 1:  # `baton router` supervises several itself
            router = replace(router, heartbeat_timeout_s=self.router.heartbeat_timeout_s)
        return [router, *(self._worker_spec(worker, log_dir) for worker in self.workers)]

    def rendezvous_specs(self, log_dir: Path) -> list[ProcessSpec]:
        """Return the rendezvous process if there are worker groups."""
        return [] if self.rendezvous is None else [rendezvous_spec(self.rendezvous, log_dir, self.log)]

    def _worker_spec(self, worker: WorkerConfig, log_dir: Path) -> ProcessSpec:
        num_threads = worker.engine.num_threads
        env = {"OMP_NUM_THREADS": str(num_threads)} if num_threads is not None else {}
        env |= ALLOCATOR
        words = [*WORKER_COMMAND, *self.log.flags, *flags_of(worker)]
        return replace(_spec(worker.worker_id, words, log_dir, env), private_dir=_parent(worker.uds))


def rendezvous_spec(config: RendezvousConfig, log_dir: Path, log: LogSettings) -> ProcessSpec:
    """Return the process of a rendezvous."""
    words = ["baton.membership.rendezvous", *log.flags, *flags_of(config)]
    return replace(_spec(RENDEZVOUS, words, log_dir, {}), private_dir=_parent(config.uds))


def _parent(uds: str | None) -> Path | None:
    """Return the directory of a Unix socket."""
    return None if uds is None else Path(uds).parent


def _spec(name: str, words: list[str], log_dir: Path, env: dict[str, str]) -> ProcessSpec:
    # -P: do not import from the current directory, which may have a package with the same name.
    argv = (sys.executable, "-P", "-m", *words)
    return ProcessSpec(name, argv, log_dir / f"{name}.log", {"PYTHONUNBUFFERED": "1", **env})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The model to serve."""

    directory: Path
    name: str  # for clients
    config: ModelConfig
    tokenizer: Path | None = None  # its directory; None: the model's
    commit: str | None = None  # of a model of the Hugging Face hub


def check_experts(model: ModelConfig, name: str, num_ranks: int) -> None:
    """Raise OptionError if expert parallelism is set for a dense model."""
    if model.moe is None and num_ranks > 1:
        raise OptionError(
            f"expert_parallel: {name} is a dense model without experts to spread; remove it, or use tensor_parallel"
        )


def plan_cluster(
    settings: ClusterSettings,
    checkpoint: Checkpoint,
    machine: Machine,
    sockets: Path | None = None,
    log: LogSettings = DEFAULT_LOG,
) -> ClusterPlan:
    """Make the config of every process. Workers share cores, GPUs and KV memory evenly unless the settings set them.

    Workers and rendezvous listen on Unix sockets in the directory `sockets`, which other users must not be able to
    enter. If it is None, they listen on free ports and find each other in a registry.

    Raises OptionError for settings that the checkpoint does not support, and for packages that are not installed.
    """
    cluster = settings.cluster
    name = cluster.served_model_name or checkpoint.name
    check_experts(checkpoint.config, checkpoint.name, max(map(cluster.num_expert_ranks, ROLES)))
    kinds = [(role, index) for role, count in cluster.num_workers.items() for index in range(count)]
    rendezvous = RendezvousConfig(host=WORKER_HOST, uds=_uds(sockets, RENDEZVOUS)) if cluster.has_groups else None
    workers = tuple(
        WorkerConfig(
            role=role,
            worker_id=f"{role}-{index}",
            host=WORKER_HOST,
            uds=_uds(sockets, f"{role}-{index}"),
            served_model_name=name,
            engine=_engine(settings, role, checkpoint, machine, machine.near(place, len(kinds))),
            tensor_parallel=cluster.num_tensor_ranks(role),
            expert_parallel=cluster.num_expert_ranks(role),
            group=f"{role}-group-{index // cluster.group_size(role)}",
            rendezvous=_rendezvous_address(rendezvous),
            **settings.worker,  # type: ignore[arg-type]  # checked against the fields' types when they were read
        )
        for place, (role, index) in enumerate(kinds)
    )
    _check_dtypes(workers)
    if any(worker.is_on_gpu for worker in workers):
        sized_roles = {role for role in ROLES if "gpu_memory_utilization" in settings.engine.get(role, {})}
        workers = place_on_gpus(workers, visible_gpus().count, sized_roles)
    if any(worker.transport == "nixl" for worker in workers) and not NIXL.is_installed:
        raise OptionError(NIXL.missing("--transport nixl"))
    options = settings.router if sockets is None else with_lora_paths(settings.router)
    if any(worker.otlp_traces_endpoint for worker in workers) and not OPENTELEMETRY.is_installed:
        raise OptionError(OPENTELEMETRY.missing("--otlp-traces-endpoint"))
    router = RouterConfig(
        model=str(checkpoint.directory),
        tokenizer=None if checkpoint.tokenizer is None else str(checkpoint.tokenizer),
        hf_overrides=settings.engine.get("decode", {}).get("hf_overrides"),  # type: ignore[arg-type]  # checked when read
        served_model_name=name,
        enable_lora=any(bool(values.get("enable_lora")) for values in settings.engine.values()),
        adapters_dir=_uds(sockets, "adapters"),
        host=cluster.host,
        port=cluster.port,
        workers=tuple(unix_address(worker.uds) for worker in workers if worker.uds is not None),
        processes=cluster.router_processes,
        **{name: settings.worker[name] for name in SHARED if name in settings.worker},  # type: ignore[arg-type]
        **{**_cache_secret(sockets), **options},  # type: ignore[arg-type]  # checked when they were read
    )
    return ClusterPlan(router=router, workers=workers, rendezvous=rendezvous, log=log)


def _check_dtypes(workers: Sequence[WorkerConfig]) -> None:
    """Raise OptionError if CPUs compute in another type than GPUs: such workers would never hand over."""
    engines = {worker.is_on_gpu: worker.engine for worker in workers}
    if len(engines) < 2:  # a router alone has none
        return
    try:
        on_gpu, on_cpu = (model_config_of(engines[is_on_gpu]).dtype for is_on_gpu in (True, False))
    except UnsupportedModel as error:
        raise OptionError(f"dtype: {error}") from error
    if on_gpu != on_cpu:
        raise OptionError(f"dtype: {on_gpu} on GPUs is {on_cpu} on CPUs; set one that both have, such as bfloat16")


def _uds(sockets: Path | None, name: str) -> str | None:
    return None if sockets is None else str(sockets / name)


def _cache_secret(sockets: Path | None) -> dict[str, str]:
    """Return the cache secret for a cluster without a registry, so that it survives restarts of the router."""
    return {} if sockets is None else {"cache_secret": new_cache_secret()}


def _rendezvous_address(rendezvous: RendezvousConfig | None) -> str | None:
    if rendezvous is None:
        return None
    return REGISTRY if rendezvous.uds is None else unix_address(rendezvous.uds)


def _engine(
    settings: ClusterSettings, role: Role, checkpoint: Checkpoint, machine: Machine, near: NearCores | None
) -> EngineConfig:
    cluster = settings.cluster
    given = dict(settings.engine.get(role, {}))
    if "num_threads" not in given:
        num_threads, num_ranks = machine.num_cores // cluster.num_ranks, cluster.num_tensor_ranks(role)
        if (cores := given.get("cores")) is not None:
            num_threads = len(_parse_cores(str(cores))) // num_ranks
        elif near is not None:
            given["cores"] = format_cores(near.cores)
            num_threads = min(num_threads, near.num_own // num_ranks)
        given["num_threads"] = max(1, num_threads)
    if cluster.kv_shards > 1:
        given.setdefault("kv_shards", cluster.kv_shards)
    if (given_bytes := settings.kv_cache_memory_bytes(role)) is not None:
        given["kv_cache_memory_bytes"] = given_bytes
    tokenizer = None if checkpoint.tokenizer is None else str(checkpoint.tokenizer)
    engine = EngineConfig(model=str(checkpoint.directory), tokenizer=tokenizer, **given)  # type: ignore[arg-type]  # checked when read
    longest = checkpoint.config.max_model_len
    if (wanted := engine.max_model_len) is not None and wanted > longest:
        hint = how_to_extend(checkpoint.config, wanted)
        raise OptionError(f"max_model_len: {wanted} tokens exceed the checkpoint's context of {longest}{hint}")
    try:
        kv_cache_dtype(checkpoint.config, engine.kv_cache_dtype)
        if checkpoint.config.recurrent is not None:
            _check_recurrent(cluster, role, checkpoint.config, engine)
    except UnsupportedModel as error:
        raise OptionError(str(error)) from error
    if not engine.is_on_cpu:  # the engine sizes its own cache
        return engine
    store_bytes = settings.worker.get("kv_host_memory_bytes") or 0
    assert isinstance(store_bytes, int)
    free_bytes = machine.memory_bytes - store_bytes
    if "kv_cache_memory_bytes" not in given:
        draft = draft_of(engine, checkpoint.config)
        token_bytes = draft.token_bytes if draft is not None else 0
        kv_bytes = default_kv_bytes(free_bytes, cluster.num_ranks, checkpoint.config, engine, token_bytes)
        engine = replace(engine, kv_cache_memory_bytes=kv_bytes)
    return with_weights_memory(engine, checkpoint.config, free_bytes, cluster.num_ranks)


def _check_recurrent(cluster: ClusterConfig, role: Role, model: ModelConfig, engine: EngineConfig) -> None:
    """Raise UnsupportedModel if a role's ranks cannot divide a model with recurrent layers."""
    shard = TensorShard(size=cluster.num_tensor_ranks(role), has_whole_experts=cluster.num_expert_ranks(role) > 1)
    check_recurrent(engine, model, shard.kv_parts(model, engine.kv_shards))
    shard.check(model)


def _parse_cores(text: str) -> tuple[int, ...]:
    try:
        return parse_cores(text)
    except ValueError as error:
        raise OptionError(str(error)) from error


def check_resources(plan: ClusterPlan, model: ModelConfig, memory: HostMemory) -> None:
    """Raise OptionError if a GPU is missing, or if all workers together need more memory than the host has."""
    for worker in plan.workers:
        if worker.is_on_gpu:
            require_gpus(worker.engine.device, worker.tensor_parallel, visible_gpus())
    memory_need(plan.workers, model).check(memory)

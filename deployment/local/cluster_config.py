"""Configuration of a cluster on one machine."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import lcm
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.router.config import RouterConfig
from baton.router.options import ROUTER_OPTIONS
from baton.settings.config_file import as_section, build, check_section, pick, read_config_file
from baton.settings.options import TLS_OPTIONS, Option, OptionInfo, options_of
from baton.settings.values import OptionError, Value
from baton.settings.worker_config import Role, WorkerConfig
from baton.settings.worker_options import WORKER_OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Options of the cluster as a whole."""

    model: str | None = None  # directory or hub id; None: the bundled model
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    prefill: int | None = None  # workers; None: one group, or 0 if there are colocated workers
    decode: int | None = None
    both: int = 0
    tensor_parallel: int = 1  # ranks of each decode or colocated worker
    prefill_tensor_parallel: int = 1  # ranks of each prefill worker
    enable_expert_parallel: bool = False  # spread the experts over a worker's tensor-parallel ranks
    expert_parallel: int = 1  # number of decode or colocated workers that the experts are spread over
    prefill_expert_parallel: int = 1  # number of prefill workers that the experts are spread over
    router_processes: int = 1
    prefill_kv_cache_memory_bytes: int | None = None  # of each prefill worker
    decode_kv_cache_memory_bytes: int | None = None  # of each decode worker
    log_dir: str | None = None

    @property
    def num_prefill(self) -> int:
        """Prefill workers to start."""
        return self.prefill if self.prefill is not None else (0 if self.both else self.group_size("prefill"))

    @property
    def num_decode(self) -> int:
        """Decode workers to start."""
        return self.decode if self.decode is not None else (0 if self.both else self.group_size("decode"))

    @property
    def num_workers(self) -> int:
        """Workers to start."""
        return self.num_prefill + self.num_decode + self.both

    @property
    def num_ranks(self) -> int:
        """Ranks of all workers."""
        return self.num_prefill * self.prefill_tensor_parallel + (self.num_decode + self.both) * self.tensor_parallel

    @property
    def kv_parts(self) -> int:
        """Shards of a KV block that suit both tensor-parallel sizes."""
        return lcm(self.prefill_tensor_parallel, self.tensor_parallel)

    @property
    def has_groups(self) -> bool:
        """Whether experts are spread over workers."""
        return max(self.group_size("decode"), self.group_size("prefill")) > 1

    def group_size(self, role: Role) -> int:
        """Number of workers in a group of this role."""
        return 1 if self.num_tensor_ranks(role) > 1 else self.num_expert_ranks(role)

    def num_expert_ranks(self, role: Role) -> int:
        """Number of ranks that this role's experts are spread over: workers, or the ranks of one worker."""
        given = self.prefill_expert_parallel if role == "prefill" else self.expert_parallel
        return max(given, self.num_tensor_ranks(role)) if self.enable_expert_parallel else given

    def num_tensor_ranks(self, role: Role) -> int:
        """Number of tensor-parallel ranks of each worker of this role."""
        return self.prefill_tensor_parallel if role == "prefill" else self.tensor_parallel

    def check_groups(self) -> None:
        """Raise OptionError if a role's workers do not divide evenly into groups."""
        counts: list[tuple[Role, int]] = [
            ("prefill", self.num_prefill),
            ("decode", self.num_decode),
            ("both", self.both),
        ]
        for role, count in counts:
            if count % self.group_size(role):
                raise OptionError(
                    f"{role}: {count} workers do not divide into groups of {self.group_size(role)} (expert_parallel)"
                )


CLUSTER_OPTIONS = {
    "model": OptionInfo("Directory or Hugging Face id of a checkpoint. Default: the bundled model."),
    "served_model_name": OptionInfo("Name of the model for clients. Default: from the model's directory or id."),
    "host": OptionInfo("Address of the HTTP server. Workers listen on Unix sockets."),
    "port": OptionInfo("Port of the OpenAI HTTP server.", minimum=1, maximum=65535),
    "prefill": OptionInfo("Number of prefill workers. Default: 1, or 0 with --both.", minimum=0, maximum=256),
    "decode": OptionInfo("Number of decode workers. Default: 1, or 0 with --both.", minimum=0, maximum=256),
    "both": OptionInfo("Number of colocated workers, which prefill and decode.", minimum=0, maximum=256),
    "tensor_parallel": OptionInfo(
        "Tensor-parallel ranks of each decode (or colocated) worker.",
        minimum=1,
        maximum=64,
        aliases=("--tensor-parallel-size", "-tp"),
    ),
    "prefill_tensor_parallel": OptionInfo("Tensor-parallel ranks of each prefill worker.", minimum=1, maximum=64),
    "enable_expert_parallel": OptionInfo(
        "Place whole experts on a worker's tensor-parallel ranks, instead of sharding every expert."
    ),
    "expert_parallel": OptionInfo(
        "Decode (or colocated) workers that the experts are spread over; they step together.",
        minimum=1,
        maximum=256,
    ),
    "prefill_expert_parallel": OptionInfo("Prefill workers that the experts are spread over.", minimum=1, maximum=256),
    "router_processes": OptionInfo(
        "Router processes that share the port.", minimum=1, maximum=256, aliases=("--api-server-count", "-asc")
    ),
    "prefill_kv_cache_memory_bytes": OptionInfo("KV cache size of each prefill worker.", minimum=1 << 16),
    "decode_kv_cache_memory_bytes": OptionInfo("KV cache size of each decode worker.", minimum=1 << 16),
    "log_dir": OptionInfo("Directory for logs. Default: a temporary one, removed after a clean shutdown."),
}
WORKER_PLANNED = frozenset(
    {
        *("role", "worker_id", "host", "port", "uds", "kv_port", "served_model_name", "registry", "lease_s"),
        *("tensor_parallel", "expert_parallel", "enable_expert_parallel", "rendezvous", "group", "group_port"),
        *("metrics_port", "progress_fd", *TLS_OPTIONS),  # not needed on one machine
    }
)
ROUTER_PLANNED = frozenset(
    {
        *("model", "served_model_name", "host", "port", "workers", "registry", "progress_fd", "drain_timeout_s"),
        *("processes", "process", "group_dir", "process_states", *TLS_OPTIONS),
        *("ssl_ca_certs", "ssl_cert_reqs"),  # the cluster itself polls /workers, without a client certificate
    }
)
ENGINE_PLANNED = frozenset({"model"})
# Workers that share one machine's cores gain nothing from disaggregation: by estimated cost, the router would prefill
# every prompt at its decode worker. A fixed threshold makes one machine behave like a cluster.
LOCAL_PREFILL_BELOW = 64
ENGINE_INFOS = {
    **WORKER_OPTIONS,
    "kv_cache_memory_bytes": OptionInfo(
        "KV cache size of each worker. Default: a share of the free memory, or on a GPU the rest of "
        "gpu_memory_utilization.",
        minimum=1 << 16,
    ),
    "num_threads": OptionInfo(
        "Torch threads of each worker. Default: its share of the cores.", minimum=1, maximum=4096
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Cluster options, and those of its router, workers and engines that the user set; the plan fills in the rest."""

    cluster: ClusterConfig
    worker: Mapping[str, Value] = field(default_factory=dict)
    router: Mapping[str, Value] = field(default_factory=dict)
    engine: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)  # by role: prefill, decode, both


def cluster_options() -> dict[str, Option]:
    """Return the options of `ClusterConfig`."""
    return options_of(ClusterConfig, CLUSTER_OPTIONS)


def worker_options() -> dict[str, Option]:
    """Return the worker options that the plan does not set."""
    return _without(options_of(WorkerConfig, WORKER_OPTIONS), WORKER_PLANNED)


def router_options() -> dict[str, Option]:
    """Return the router options that the plan does not set."""
    options = _without(options_of(RouterConfig, ROUTER_OPTIONS), ROUTER_PLANNED)
    below = options["local_prefill_below"]
    return {**options, below.name: replace(below, default=LOCAL_PREFILL_BELOW)}


def engine_options() -> dict[str, Option]:
    """Return the engine options that the plan does not set."""
    options = _without(options_of(EngineConfig, ENGINE_INFOS), ENGINE_PLANNED)
    size = options["kv_cache_memory_bytes"]
    return {**options, size.name: replace(size, default=None)}  # the plan's default, not the engine's


def _without(options: dict[str, Option], names: frozenset[str]) -> dict[str, Option]:
    return {name: option for name, option in options.items() if name not in names}


def load_settings(
    file: Path | None, flags: Mapping[str, object], counted_elsewhere: Collection[Role] = ()
) -> ClusterSettings:
    """Read settings from a YAML file and flags (None: not set); flags take precedence.

    The file's top level has the options of the cluster and of every worker; the sections `router`, `engine`,
    `prefill_engine` and `decode_engine` those of its parts, where the last two override `engine`. Roles in
    `counted_elsewhere` have workers, whatever their number is here. Raises OptionError with the offending key.
    """
    content = read_config_file(file) if file is not None else {}
    top_options = {**cluster_options(), **worker_options()}
    sections = {"the top level": top_options, "router": router_options(), "engine": engine_options()}
    elsewhere = {
        key: section for section, options in sections.items() for option in options.values() for key in option.keys
    }

    def take(section: str, options: Mapping[str, Option]) -> dict[str, Value]:
        return check_section(options, as_section(content.pop(section, {}), section), f"{section}.", elsewhere)

    engine = take("engine", engine_options())
    by_role = {
        "prefill": {**engine, **take("prefill_engine", engine_options())},
        "decode": {**engine, **take("decode_engine", engine_options())},
        "both": engine,
    }
    router = {**take("router", router_options()), **pick(router_options(), flags)}
    if "slo" not in router and "target_ttft_ms" not in router:
        router = {"local_prefill_below": LOCAL_PREFILL_BELOW, **router}  # with an SLO, estimated costs decide
    top = check_section(top_options, content, elsewhere=elsewhere)
    cluster = build(ClusterConfig, cluster_options(), pick(cluster_options(), top), pick(cluster_options(), flags))
    counts = {"prefill": cluster.num_prefill, "decode": cluster.num_decode, "both": cluster.both}
    roles = {role for role, count in counts.items() if count}.union(counted_elsewhere)
    _check_pools(roles)
    given_engine = pick(engine_options(), flags)
    engines = {role: {**values, **given_engine} for role, values in by_role.items()}
    _check_alike(roles, engines)
    return ClusterSettings(
        cluster=cluster,
        worker={**pick(worker_options(), top), **pick(worker_options(), flags)},
        router=router,
        engine=engines,
    )


def _check_pools(roles: Collection[str]) -> None:
    if not {"decode", "both"}.intersection(roles):
        raise OptionError("decode: no worker decodes; set --decode or --both to at least 1")
    if "prefill" in roles and "decode" not in roles:
        raise OptionError(
            "prefill: no worker would decode what these prefill, because colocated workers prefill for themselves; "
            "set --decode to at least 1, or remove --prefill"
        )


def _check_alike(roles: Collection[str], engines: Mapping[str, Mapping[str, Value]]) -> None:
    """Raise OptionError if the roles' KV blocks differ: such workers would never hand over, without an error."""
    for name in ("dtype", "quantization", "kv_cache_dtype", "block_size"):
        default = engine_options()[name].default
        values = {role: engines[role].get(name, default) for role in engines if role in roles}
        if len(set(values.values())) > 1:
            found = ", ".join(f"{value} for {role}" for role, value in values.items())
            raise OptionError(f"{name}: {found}, but it must be equal for workers that hand over KV")

"""Configuration of a cluster on one machine."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import lcm
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.router.config import RouterConfig
from baton.settings.config_file import as_section, build, check_section, pick, read_config_file
from baton.settings.names import Role
from baton.settings.options import Option, option, options_of
from baton.settings.values import OptionError, Value
from baton.worker.config import WorkerConfig

POOL_KEYS: dict[str, str] = {"prefill": "prefill", "decode": "decode", "both": "colocated"}  # options with the sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Options of the cluster as a whole."""

    model: str | None = option(None, "Directory or Hugging Face id of a checkpoint. Default: the bundled model.")
    revision: str | None = option(
        None, "Branch, tag or commit of a model of the Hugging Face hub. Default: its main branch."
    )
    tokenizer: str | None = option(
        None, "Directory or Hugging Face id of the tokenizer and its chat template. Default: the model's."
    )
    tokenizer_revision: str | None = option(
        None,
        "Branch, tag or commit of --tokenizer; without --tokenizer, of the model's repository, whose tokenizer at this "
        "revision is used. Default: the main branch of --tokenizer.",
    )
    served_model_name: str | None = option(
        None, "Name of the model for clients. Default: from the model's directory or id."
    )
    host: str = option("127.0.0.1", "Address of the HTTP server. Workers listen on Unix sockets.")
    port: int = option(8000, "Port of the OpenAI HTTP server.", minimum=1, maximum=65535)
    prefill: int | None = option(
        None, "Number of prefill workers. Default: 1, or 0 with --colocated.", minimum=0, maximum=256
    )
    decode: int | None = option(
        None, "Number of decode workers. Default: 1, or 0 with --colocated.", minimum=0, maximum=256
    )
    colocated: int = option(
        0,
        "Number of colocated workers, which prefill and decode. With decode workers, they prefill for these and "
        "decode as long as their prompts leave room, or what these have no room for.",
        minimum=0,
        maximum=256,
        former=("both",),
    )
    tensor_parallel: int = option(
        1,
        "Tensor-parallel ranks of each decode (or colocated) worker.",
        minimum=1,
        maximum=64,
        aliases=("--tensor-parallel-size", "-tp"),
    )
    prefill_tensor_parallel: int = option(1, "Tensor-parallel ranks of each prefill worker.", minimum=1, maximum=64)
    enable_expert_parallel: bool = option(
        False,
        "Place whole experts on a worker's tensor-parallel ranks, instead of sharding every expert: the same as "
        "expert_parallel equal to tensor_parallel, and likewise for prefill workers.",
    )
    expert_parallel: int = option(
        1,
        "Decode (or colocated) workers that the experts are spread over; they step together. Must divide their number.",
        minimum=1,
        maximum=256,
    )
    prefill_expert_parallel: int = option(
        1, "Prefill workers that the experts are spread over.", minimum=1, maximum=256
    )
    router_processes: int = option(
        1, "Router processes that share the port.", minimum=1, maximum=256, aliases=("--api-server-count", "-asc")
    )
    prefill_kv_cache_memory_bytes: int | None = option(
        None, "KV cache size of each prefill worker. Default: kv_cache_memory_bytes.", minimum=1 << 16
    )
    decode_kv_cache_memory_bytes: int | None = option(
        None, "KV cache size of each decode worker. Default: kv_cache_memory_bytes.", minimum=1 << 16
    )
    log_dir: str | None = option(
        None, "Directory for logs, a file per process. Default: a temporary one, removed after a clean shutdown."
    )
    max_log_bytes: int = option(
        64 << 20, "Size at which a process's log is moved to FILE.1, in place of an earlier one.", minimum=1 << 16
    )

    @property
    def num_workers(self) -> dict[Role, int]:
        """Workers to start, by role."""
        return {
            "prefill": self._size(self.prefill, "prefill"),
            "decode": self._size(self.decode, "decode"),
            "both": self.colocated,
        }

    def with_workers(self, counts: Mapping[Role, int]) -> "ClusterConfig":
        """Return the config with these numbers of workers."""
        return replace(self, prefill=counts["prefill"], decode=counts["decode"], colocated=counts["both"])

    def _size(self, given: int | None, role: Role) -> int:
        """Return the given number of workers. Default: one group, or none with colocated workers."""
        return given if given is not None else (0 if self.colocated else self.group_size(role))

    @property
    def num_ranks(self) -> int:
        """Ranks of all workers."""
        return sum(count * self.num_tensor_ranks(role) for role, count in self.num_workers.items())

    @property
    def kv_shards(self) -> int:
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
        for role, count in self.num_workers.items():
            if count % self.group_size(role):
                raise OptionError(
                    f"{POOL_KEYS[role]}: {count} workers do not divide into groups of {self.group_size(role)} "
                    "(expert_parallel)"
                )


WORKER_PLANNED = frozenset(
    {
        *("role", "worker_id", "host", "port", "uds", "kv_port", "served_model_name", "registry", "lease_s"),
        *("tensor_parallel", "expert_parallel", "enable_expert_parallel", "rendezvous", "group", "group_port"),
        "application",
        *("nnodes", "node_rank", "master_addr", "master_port", "node_timeout_s"),
        *(
            "metrics_port",
            "progress_fd",
            "tls_cert",
            "tls_key",
            "tls_ca",
            "tls_server_name",
        ),  # not needed on one machine
    }
)
ROUTER_PLANNED = frozenset(
    {
        *(
            "model",
            "tokenizer",
            "hf_overrides",
            "served_model_name",
            "also_serve",
            "enable_lora",
            "adapters_dir",
            "host",
            "port",
            "workers",
            "registry",
        ),
        *("progress_fd", "drain_timeout_s", "metrics_names", "otlp_traces_endpoint"),  # the workers' options
        *("processes", "process", "group_dir", "process_states", "tls_cert", "tls_key", "tls_ca", "tls_server_name"),
        *("ssl_ca_certs", "ssl_cert_reqs"),  # the cluster itself polls /workers, without a client certificate
    }
)
ENGINE_PLANNED = frozenset({"model", "tokenizer"})
# Workers that share one machine's cores gain nothing from disaggregation: by estimated cost, the router would prefill
# every prompt at its decode worker. A fixed threshold makes one machine behave like a cluster.
LOCAL_PREFILL_BELOW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Cluster options, and those of its router, workers and engines that the user set; the plan fills in the rest."""

    cluster: ClusterConfig
    worker: Mapping[str, Value] = field(default_factory=dict)
    router: Mapping[str, Value] = field(default_factory=dict)
    engine: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)  # by role: prefill, decode, both

    def kv_cache_memory_bytes(self, role: Role) -> Value:
        """Return the given size of the KV cache of each of the role's ranks; None: the default."""
        pools = {
            "prefill": self.cluster.prefill_kv_cache_memory_bytes,
            "decode": self.cluster.decode_kv_cache_memory_bytes,
        }
        own = pools.get(role)
        return self.engine.get(role, {}).get("kv_cache_memory_bytes") if own is None else own


def cluster_options() -> dict[str, Option]:
    """Return the options of `ClusterConfig`."""
    return options_of(ClusterConfig)


def worker_options() -> dict[str, Option]:
    """Return the worker options that the plan does not set."""
    return _without(options_of(WorkerConfig), WORKER_PLANNED)


def router_options() -> dict[str, Option]:
    """Return the router options that the plan does not set."""
    options = _without(options_of(RouterConfig), ROUTER_PLANNED)
    below = options["local_prefill_below"]
    return {**options, below.name: replace(below, default=LOCAL_PREFILL_BELOW)}


def engine_options() -> dict[str, Option]:
    """Return the engine options that the plan does not set."""
    return _without(options_of(EngineConfig), ENGINE_PLANNED)


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
    cluster = build(ClusterConfig, pick(cluster_options(), top), pick(cluster_options(), flags))
    roles = {role for role, count in cluster.num_workers.items() if count}.union(counted_elsewhere)
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
        raise OptionError("decode: no worker decodes; set --decode or --colocated to at least 1")
    if "prefill" in roles and "decode" not in roles:
        raise OptionError(
            "prefill: no worker would decode what these prefill, because colocated workers prefill for themselves; "
            "set --decode to at least 1, or remove --prefill"
        )


def _check_alike(roles: Collection[str], engines: Mapping[str, Mapping[str, Value]]) -> None:
    """Raise OptionError if the roles' KV blocks differ: such workers would never hand over, without an error."""
    is_mixed = all(engines[role].get("allow_mixed_quantization") for role in engines if role in roles)
    layout = ("kv_cache_dtype", "block_size", "hybrid_kv_cache")
    adapters = ("enable_lora", "max_lora_rank", "lora_dtype")
    for name in ("allow_mixed_quantization", "dtype", "hf_overrides", "quantization", *adapters, *layout):
        if name == "quantization" and is_mixed:
            continue
        default = engine_options()[name].default
        values = {role: engines[role].get(name, default) for role in engines if role in roles}
        if len(set(values.values())) > 1:
            found = ", ".join(f"{value} for {role}" for role, value in values.items())
            unless = "; allow_mixed_quantization permits it" if name == "quantization" else ""
            raise OptionError(f"{name}: {found}, but it must be equal for workers that hand over KV{unless}")

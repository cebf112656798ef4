"""Settings of a Ray Serve application: the cluster's options, the registry, TLS, and each deployment's options."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from baton.deployment.local.cluster import END_MARGIN_S
from baton.deployment.local.cluster_config import POOL_KEYS, ClusterSettings, worker_options
from baton.deployment.ray.options import DeploymentOptions
from baton.process.log_settings import DEFAULT_LOG, FORMAT_HELP, LEVEL_HELP, LogFormat, LogLevel, LogSettings
from baton.settings.names import Role
from baton.settings.options import LEASE_S, TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME, option
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.worker.drain import HAND_OFF_S, PULL_S

ROLES: tuple[Role, ...] = ("prefill", "decode", "both")
ROUTER = "router"
RENDEZVOUS = "rendezvous"
SECTIONS = {name: f"{POOL_KEYS.get(name, name)}_ray" for name in (*ROLES, ROUTER, RENDEZVOUS)}  # by deployment
FORMER_SECTIONS = {"both_ray": SECTIONS["both"]}  # of earlier releases
NO_REGISTRY = (
    "registry: missing; set the URL of a Redis that every node can reach (redis://HOST:6379/0), where workers and "
    "routers find each other"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Options of all processes that a cluster on one machine does not need."""

    registry: str | None = option(
        None, "URL of the registry (redis://...) in which workers and routers find each other.", secret=True
    )
    registry_file: str | None = option(None, "File with the registry's URL, on every node, instead of `registry`.")
    lease_s: float = option(10.0, LEASE_S, minimum=1, maximum=3600)
    tls_cert: str | None = option(None, TLS_CERT)  # files on every node
    tls_key: str | None = option(None, TLS_KEY)
    tls_ca: str | None = option(None, TLS_CA)
    tls_server_name: str | None = option(None, TLS_SERVER_NAME)
    log_level: LogLevel = option("info", LEVEL_HELP)
    log_format: LogFormat = option("text", FORMAT_HELP)

    @property
    def has_registry(self) -> bool:
        """Whether a registry is set."""
        return self.registry is not None or self.registry_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """A cluster's settings, and those that only Ray needs."""

    cluster: ClusterSettings
    shared: SharedOptions
    deployments: Mapping[str, DeploymentOptions]  # by name
    has_router: bool = True
    host: str | None = None  # listen address of routers; None: the node's address
    port: int = 0  # of each router; 0: a free port, so that clients must use Serve's HTTP server
    log: LogSettings = DEFAULT_LOG

    def registry_url(self) -> str:
        """Return the registry's URL, read from `registry_file` if set. Raises OptionError."""
        if self.shared.registry_file is None:
            assert self.shared.registry is not None  # the settings were checked
            return self.shared.registry
        try:
            url = Path(self.shared.registry_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"registry_file: {self.shared.registry_file}: {error}") from error
        parse_registry_url(url)
        return url

    def with_registry(self, url: str) -> "RaySettings":
        """Return settings with this registry."""
        return replace(self, shared=replace(self.shared, registry=url))

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that a process lets its requests finish at shutdown."""
        given = self.cluster.worker.get("drain_timeout_s", worker_options()["drain_timeout_s"].default)
        assert isinstance(given, float)
        return given

    @property
    def longest_drain_s(self) -> float:
        """Maximum seconds of a worker's shutdown, including the handover of unfinished requests and their KV."""
        return self.drain_timeout_s + HAND_OFF_S + PULL_S + END_MARGIN_S

    def shutdown_timeout_s(self, name: str) -> float:
        """Return the maximum seconds of a replica's shutdown. Default: the longest drain."""
        given = self.deployments[name].replicas.graceful_shutdown_timeout_s
        return self.longest_drain_s if given is None else given

    def num_replicas(self, name: str) -> int:
        """Return the number of replicas of a deployment; with autoscaling, its initial number."""
        options, cluster = self.deployments[name], self.cluster.cluster
        if options.autoscaling is not None:
            initial = options.autoscaling.initial_replicas
            return options.autoscaling.min_replicas if initial is None else initial
        if options.replicas.num_replicas is not None:
            return options.replicas.num_replicas
        sizes = {str(role): size for role, size in cluster.num_workers.items()}
        return sizes.get(name, 1)  # one router, one rendezvous

    def num_gpus(self, name: str) -> float:
        """Return the GPUs of one replica of a deployment, on each of its nodes."""
        given = self.deployments[name].replicas.num_gpus
        if given is not None:
            return given
        return float(sum(self.ranks_per_node(role) for role in ROLES if name == role and self.uses_gpu(role)))

    def num_nodes(self, role: Role) -> int:
        """Return the number of nodes of each of the role's workers."""
        return self.deployments[role].replicas.nodes_per_worker

    def ranks_per_node(self, role: Role) -> int:
        """Return the tensor-parallel ranks of each of the role's workers on each of its nodes."""
        return self.cluster.cluster.num_tensor_ranks(role) // self.num_nodes(role)

    def group_size(self, role: Role) -> int:
        """Return the number of workers that a pool's expert-parallel group needs to start; later workers join it."""
        return self.cluster.cluster.group_size(role)

    @property
    def has_rendezvous(self) -> bool:
        """Whether a pool's workers form an expert-parallel group."""
        return any(self.has(role) and self.group_size(role) > 1 for role in ROLES)

    def has(self, role: Role) -> bool:
        """Whether the application has a deployment of this role."""
        return self.deployments[role].autoscaling is not None or self.num_replicas(role) > 0

    def uses_gpu(self, role: Role) -> bool:
        """Whether the role's engines run on GPUs."""
        return self.device(role).partition(":")[0] != "cpu"

    def device(self, role: Role) -> str:
        """Return the torch device of the role's engines."""
        return str(self.cluster.engine[role]["device"])

    def check(self) -> None:
        """Raise OptionError for missing settings, which may be set after the rest was read."""
        if not self.shared.has_registry:
            raise OptionError(NO_REGISTRY)
        if self.cluster.cluster.model is None:
            raise OptionError("model: missing; set a directory that exists on every node")

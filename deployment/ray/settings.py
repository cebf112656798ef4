"""What an application on Ray Serve is told: a cluster's options, and where its processes meet and are placed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.deployment.local.cluster import END_MARGIN_S
from baton.deployment.local.cluster_config import ClusterSettings, worker_options
from baton.deployment.ray.options import DeploymentOptions
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.settings.worker_config import Role
from baton.worker.drain import HAND_OFF_S, PULL_S

ROLES: tuple[Role, ...] = ("prefill", "decode", "both")
ROUTER = "router"
RENDEZVOUS = "rendezvous"
SECTIONS = {name: f"{name}_ray" for name in (*ROLES, ROUTER, RENDEZVOUS)}  # of each deployment's options
NO_REGISTRY = (
    "registry: missing; give the URL of a Redis that every node reaches (redis://HOST:6379/0): there workers and "
    "routers find each other"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Options of all processes that one machine's cluster does not have."""

    registry: str | None = field(default=None, repr=False)  # perhaps with a password
    registry_file: str | None = None  # that holds the URL instead; every node has it
    lease_s: float = 10.0
    tls_cert: str | None = None  # files that every node has
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None

    @property
    def has_registry(self) -> bool:
        """Whether there is one."""
        return self.registry is not None or self.registry_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """A cluster's settings, and what Ray adds."""

    cluster: ClusterSettings
    shared: SharedOptions
    deployments: Mapping[str, DeploymentOptions]  # by name
    has_router: bool = True
    host: str | None = None  # where routers listen; None: at their node's address
    port: int = 0  # of each router; 0: any free one, so that only Serve's own HTTP server leads there
    log_level: str = "info"

    def registry_url(self) -> str:
        """The registry's URL, from its file if that is what was given. Raises OptionError."""
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
        """The same with this registry."""
        return replace(self, shared=replace(self.shared, registry=url))

    @property
    def drain_timeout_s(self) -> float:
        """How long a process lets its requests finish at its end."""
        given = self.cluster.worker.get("drain_timeout_s", worker_options()["drain_timeout_s"].default)
        assert isinstance(given, float)
        return given

    @property
    def longest_drain_s(self) -> float:
        """How long a worker may take to end: what does not finish is handed on, and pulled."""
        return self.drain_timeout_s + HAND_OFF_S + PULL_S + END_MARGIN_S

    def shutdown_timeout_s(self, name: str) -> float:
        """Longest end of a deployment's replica: what a drain may take, unless it is given."""
        given = self.deployments[name].replicas.graceful_shutdown_timeout_s
        return self.longest_drain_s if given is None else given

    def num_replicas(self, name: str) -> int:
        """Replicas of a deployment; with autoscaling, at the start."""
        options, cluster = self.deployments[name], self.cluster.cluster
        if options.autoscaling is not None:
            initial = options.autoscaling.initial_replicas
            return options.autoscaling.min_replicas if initial is None else initial
        if options.replicas.num_replicas is not None:
            return options.replicas.num_replicas
        sizes = {"prefill": cluster.num_prefill, "decode": cluster.num_decode, "both": cluster.both}
        return {**sizes, ROUTER: 1, RENDEZVOUS: 1}[name]

    def num_gpus(self, name: str) -> float:
        """GPUs of one replica of a deployment."""
        given = self.deployments[name].replicas.num_gpus
        if given is not None:
            return given
        using = [role for role in ROLES if name == role and self.uses_gpu(role)]
        return float(sum(map(self.cluster.cluster.num_tensor_ranks, using)))

    def group_size(self, role: Role) -> int:
        """Workers with which a pool's group of expert-parallel ranks begins; all that come later join it."""
        return self.cluster.cluster.group_size(role)

    @property
    def has_rendezvous(self) -> bool:
        """Whether there is a pool whose workers are a group."""
        return any(self.has(role) and self.group_size(role) > 1 for role in ROLES)

    def has(self, role: Role) -> bool:
        """Whether there is a deployment of this role."""
        return self.deployments[role].autoscaling is not None or self.num_replicas(role) > 0

    def uses_gpu(self, role: Role) -> bool:
        """Whether a role's engines run on GPUs."""
        return self.device(role).partition(":")[0] != "cpu"

    def device(self, role: Role) -> str:
        """The device of a role's engines, as torch names it."""
        return str(self.cluster.engine[role]["device"])

    def check(self) -> None:
        """Raises OptionError for what is missing: a part of it may be known only after the rest was read."""
        if not self.shared.has_registry:
            raise OptionError(NO_REGISTRY)
        if self.cluster.cluster.model is None:
            raise OptionError("model: missing; give a directory that every node has")

"""What an application on Ray Serve is told: a cluster's options, and where its processes meet and are placed."""

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from deployment.cluster_config import ClusterSettings, engine_options, load_settings, worker_options
from deployment.local import END_MARGIN_S
from deployment.ray_options import DeploymentOptions, read_deployment
from router.api_key import hidden
from rpc.config_file import as_section, build, check_section, pick
from rpc.drain import HAND_OFF_S, PULL_S
from rpc.option_values import OptionError, Value, shown
from rpc.options import OptionInfo, options_of
from rpc.registry.url import parse_registry_url
from rpc.worker_config import Role
from rpc.worker_options import WORKER_OPTIONS

ROLES: tuple[Role, ...] = ("prefill", "decode", "both")
ROUTER = "router"
SECTIONS = {name: f"{name}_ray" for name in (*ROLES, ROUTER)}  # of each deployment's options
SHARED_OPTIONS = {**WORKER_OPTIONS, "registry_file": OptionInfo("File that holds the registry's URL.")}
BELOW = "local_prefill_below"
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

    def shutdown_timeout_s(self, name: str) -> float:
        """Longest end of a deployment's replica: what a drain may take, unless it is given."""
        given = self.deployments[name].replicas.graceful_shutdown_timeout_s
        return self.drain_timeout_s + HAND_OFF_S + PULL_S + END_MARGIN_S if given is None else given

    def num_replicas(self, name: str) -> int:
        """Replicas of a deployment; with autoscaling, at the start."""
        options, cluster = self.deployments[name], self.cluster.cluster
        if options.autoscaling is not None:
            initial = options.autoscaling.initial_replicas
            return options.autoscaling.min_replicas if initial is None else initial
        if options.replicas.num_replicas is not None:
            return options.replicas.num_replicas
        return {"prefill": cluster.num_prefill, "decode": cluster.num_decode, "both": cluster.both, ROUTER: 1}[name]

    def num_gpus(self, name: str) -> float:
        """GPUs of one replica of a deployment."""
        given = self.deployments[name].replicas.num_gpus
        return float(self._uses_gpu(name)) if given is None else given

    def has(self, role: Role) -> bool:
        """Whether there is a deployment of this role."""
        return self.deployments[role].autoscaling is not None or self.num_replicas(role) > 0

    def _uses_gpu(self, name: str) -> bool:
        device = self.cluster.engine.get(name, {}).get("device") or engine_options()["device"].default
        return str(device).partition(":")[0] != "cpu"

    def check(self) -> None:
        """Raises OptionError for what Ray could never run."""
        if not self.shared.has_registry:
            raise OptionError(NO_REGISTRY)
        if self.cluster.cluster.model is None:
            raise OptionError("model: missing; give a directory that every node has")
        for role in filter(self.has, ROLES):
            if self._uses_gpu(role) and not self.num_gpus(role):
                raise OptionError(f"{SECTIONS[role]}.num_gpus: without one Ray hides the GPUs that device asks for")


def read_ray_settings(
    content: Mapping[str, object], flags: Mapping[str, object], one_machine: bool = False
) -> RaySettings:
    """Settings from an application's arguments (or a file's content) and flags (None where not given); flags win.

    The arguments are the keys of `baton serve`'s file, those of `SharedOptions`, and a section of `SECTIONS` for each
    deployment; `router: false` is an application without one. A key `SECTION.KEY` is a section's. Only on one machine
    has `local_prefill_below` a default. Raises OptionError naming the offending key.
    """
    rest = _nested(as_section(content, "arguments"))
    shared = _take_shared(rest, flags)
    deployments = {name: read_deployment(rest.pop(section, None), section) for name, section in SECTIONS.items()}
    has_router = rest.get(ROUTER) not in (False, "false")
    if not has_router:
        rest.pop(ROUTER)
    given = {name for name in ("host", "port") if name in rest or flags.get(name) is not None}
    has_below = BELOW in as_section(rest.get(ROUTER), ROUTER) or flags.get(BELOW) is not None
    counted = [role for role in ROLES if deployments[role].has_size]
    cluster = _load(rest, flags, counted)
    leave_out = () if one_machine or has_below else (BELOW,)
    cluster = replace(cluster, router=_kept(cluster.router, leave_out))
    return RaySettings(
        cluster=cluster,
        shared=shared,
        deployments=deployments,
        has_router=has_router,
        host=cluster.cluster.host if "host" in given else None,
        port=cluster.cluster.port if "port" in given else 0,
    )


def _take_shared(rest: dict[str, object], flags: Mapping[str, object]) -> SharedOptions:
    options = options_of(SharedOptions, SHARED_OPTIONS)
    own = check_section(options, {name: rest.pop(name) for name in options if name in rest})
    shared = build(SharedOptions, options, own, pick(options, flags))
    if shared.registry is not None:
        parse_registry_url(shared.registry)
        if shared.registry_file is not None:
            raise OptionError("registry: the URL is given here or in registry_file, not both")
    files = (shared.tls_cert, shared.tls_key, shared.tls_ca)
    if None in files and (any(files) or shared.tls_server_name):
        raise OptionError("tls_cert, tls_key, tls_ca: all three are needed, or nothing of TLS")
    return shared


def _nested(arguments: dict[str, object]) -> dict[str, object]:
    """The arguments with those of `SECTION.KEY` in their sections, as a command line has them."""
    nested: dict[str, object] = {}
    for key, value in arguments.items():
        section, dot, name = key.partition(".")
        if not dot:
            nested[key] = value
            continue
        inner = nested.setdefault(section, {})
        if not isinstance(inner, dict):
            raise OptionError(f"{key}: {section} is {shown(inner)} already")
        nested[section] = {**inner, name: value}
    return nested


def _kept(router: Mapping[str, Value], leave_out: Collection[str]) -> dict[str, Value]:
    """The router's options as Ray may keep them: API keys as their digests."""
    kept = {name: value for name, value in router.items() if name not in leave_out}
    keys = kept.get("api_key")
    if isinstance(keys, tuple) and all(keys):  # what is no key is refused by the router
        kept["api_key"] = tuple(map(hidden, keys))
    return kept


def _load(content: Mapping[str, object], flags: Mapping[str, object], counted: Collection[Role]) -> ClusterSettings:
    """The cluster's settings, read as from a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(dict(content), file)
        file.flush()
        return load_settings(Path(file.name), flags, counted)

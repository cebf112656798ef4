"""Options of one Ray Serve deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from baton.deployment.autoscaling.settings import START_TIMEOUT_S
from baton.settings.config_file import as_section, build, check_section
from baton.settings.options import option, options_of
from baton.settings.values import OptionError, Value, parse_float, parse_text, shown, shown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """Size, resources, health checks and shutdown of a deployment's replicas."""

    num_replicas: int | None = option(
        None, "Number of replicas. Default: from the cluster's options.", minimum=1, maximum=4096
    )
    nodes_per_worker: int = option(
        1,
        "Nodes over which the tensor-parallel ranks of each worker are divided. Each replica then has a placement "
        "group with a bundle on each of as many nodes.",
        minimum=1,
        maximum=64,
    )
    num_cpus: float = option(1.0, "Ray CPUs of a replica, on each of its nodes.", minimum=0, maximum=4096)
    num_gpus: float | None = option(
        None,
        "GPUs of a replica, on each of its nodes. Default: one per rank there if the engine's device is a GPU.",
        minimum=0,
        maximum=1024,
    )
    memory_bytes: int | None = option(
        None, "Memory that Ray reserves for a replica, on each of its nodes. Default: none.", minimum=1
    )
    max_replicas_per_node: int | None = option(None, "Maximum replicas on one node.", minimum=1, maximum=100)
    max_ongoing_requests: int | None = option(
        None, "Maximum concurrent requests that Serve sends to a replica.", minimum=1
    )
    start_timeout_s: float = option(START_TIMEOUT_S, "Maximum seconds until a replica is ready.", minimum=1)
    health_check_period_s: float = option(2.0, "Seconds between health checks.", minimum=0.1)
    health_check_timeout_s: float = option(10.0, "Maximum seconds of a health check.", minimum=0.1)
    graceful_shutdown_timeout_s: float | None = option(None, "Maximum seconds of a replica's shutdown.", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingOptions:
    """Bounds of an autoscaled deployment's size."""

    min_replicas: int = option(1, "Minimum number of replicas.", minimum=0, maximum=4096)
    max_replicas: int = option(1, "Maximum number of replicas.", minimum=1, maximum=4096)
    initial_replicas: int | None = option(
        None, "Number of replicas at start. Default: min_replicas.", minimum=0, maximum=4096
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """Options of one deployment, and the placement constraints of its replicas."""

    replicas: ReplicaOptions = field(default_factory=ReplicaOptions)
    autoscaling: AutoscalingOptions | None = None
    resources: Mapping[str, float] = field(default_factory=dict)  # Ray's custom resources of one replica
    label_selector: Mapping[str, str] = field(default_factory=dict)  # node labels, in Ray's syntax
    runtime_env: Mapping[str, object] = field(default_factory=dict)  # passed to Ray, which checks it

    @property
    def has_size(self) -> bool:
        """Whether the number of replicas is set here, and not by the cluster's options."""
        return self.autoscaling is not None or self.replicas.num_replicas is not None


def read_deployment(
    content: object, where: str, defaults: Mapping[str, Value] = MappingProxyType({})
) -> DeploymentOptions:
    """Read the options of the section `where`; `defaults` replace those of ReplicaOptions.

    Raises OptionError with the offending key.
    """
    section = as_section(content, where)
    resources = {
        name: _number(value, f"{where}.resources.{name}") for name, value in _take(section, "resources", where)
    }
    labels = {
        name: _text(value, f"{where}.label_selector.{name}") for name, value in _take(section, "label_selector", where)
    }
    runtime_env = dict(_take(section, "runtime_env", where))
    autoscaling = _read_autoscaling(section.pop("autoscaling", None), f"{where}.autoscaling")
    elsewhere = dict.fromkeys(options_of(AutoscalingOptions), f"{where}.autoscaling")
    given = check_section(options_of(ReplicaOptions), section, f"{where}.", elsewhere)
    replicas = build(ReplicaOptions, defaults, given)
    if autoscaling is not None and replicas.num_replicas is not None:
        raise OptionError(f"{where}.num_replicas: cannot be combined with autoscaling; set min_replicas there")
    return DeploymentOptions(
        replicas=replicas,
        autoscaling=autoscaling,
        resources=resources,
        label_selector=labels,
        runtime_env=runtime_env,
    )


def _read_autoscaling(content: object, where: str) -> AutoscalingOptions | None:
    if content is None:
        return None
    values = check_section(options_of(AutoscalingOptions), as_section(content, where), f"{where}.")
    autoscaling = build(AutoscalingOptions, values)
    if autoscaling.max_replicas < autoscaling.min_replicas:
        raise OptionError(f"{where}.max_replicas: {autoscaling.max_replicas} is less than min_replicas")
    initial = autoscaling.initial_replicas
    if initial is not None and not autoscaling.min_replicas <= initial <= autoscaling.max_replicas:
        raise OptionError(f"{where}.initial_replicas: {initial} is not between min_replicas and max_replicas")
    return autoscaling


def _take(section: dict[str, object], name: str, where: str) -> list[tuple[str, object]]:
    """Pop a mapping from a section; its keys are Ray's and are not checked."""
    content = section.pop(name, None)
    if content is None:
        return []
    if not isinstance(content, Mapping):
        raise OptionError(f"{where}.{name}: must be a mapping, but is {shown(content)}")
    return [(str(key), value) for key, value in content.items()]


def _number(value: object, where: str) -> float:
    try:
        number = parse_float(value)
    except (ValueError, OverflowError):
        number = -1.0
    if number < 0:
        raise OptionError(f"{shown_name(where)}: {shown(value)} is not allowed; it must be a number of at least 0")
    return number


def _text(value: object, where: str) -> str:
    try:
        return parse_text(value)
    except ValueError as error:
        raise OptionError(f"{shown_name(where)}: {shown(value)} is not allowed; it must be a string") from error

"""Settings for reading a budget: Baton's pods, and the nodes that they may run on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import ScalingSettings


def first_fault(error: ValidationError) -> str:
    """Return the location and message of the first validation error."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Toleration of a pod template; other fields matter only for running pods and are ignored."""

    key: str = ""  # empty: every key
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""  # empty: every effect

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPods:
    """Pods of one pool, as in their template."""

    labels: Mapping[str, str]  # labels of all these pods and of no others
    gpus_per_pod: int = 1  # requested amount of the resource
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Settings for reading a budget from a cluster; docs/kubernetes_budget.md explains each."""

    prefill: PoolPods
    decode: PoolPods
    resource: str = "nvidia.com/gpu"
    namespace: str | None = None  # of Baton's pods; None: the pod's own namespace
    own_namespace_only: bool = False  # list no other pods: no other namespace uses the resource on these nodes
    refresh_s: float = 10.0  # between two reads
    timeout_s: float = 5.0  # of each of the two lists

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, values: object) -> "KubernetesSettings":
        """Parse the content of a YAML file. Raises ValueError with the first invalid value."""
        try:
            settings = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise ValueError(first_fault(error)) from error
        settings.check()
        return settings

    @property
    def pools(self) -> ByPool[PoolPods]:
        """Pods of both pools."""
        return ByPool(self.prefill, self.decode)

    def check(self) -> None:
        """Raise ValueError with the first invalid value."""
        for name in ("refresh_s", "timeout_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}, but must be above 0")
        for name, pods in zip(("prefill", "decode"), self.pools.both(), strict=True):
            if not pods.labels:
                raise ValueError(f"{name}: labels must not be empty, they would match every pod")
            if pods.gpus_per_pod < 1:
                raise ValueError(f"{name}: gpus_per_pod is {pods.gpus_per_pod}, but must be 1 or more")

    def check_pod_sizes(self, scaling: ScalingSettings) -> None:
        """Raise ValueError unless whole replicas fill whole pods."""
        for name, (pods, limits) in zip(("prefill", "decode"), self.pools.zip(scaling.limits).both(), strict=True):
            per_pod, per_replica = pods.gpus_per_pod, limits.gpus_per_replica
            if per_pod % per_replica and per_replica % per_pod:
                raise ValueError(f"{name}: gpus_per_pod is {per_pod}, which replicas of {per_replica} GPUs do not fill")

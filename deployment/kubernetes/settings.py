"""Which pods are ours, and where they may run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import ScalingSettings


def first_fault(error: ValidationError) -> str:
    """Where the first fault is, and what it is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """As in a pod's template; what else stands there is about pods that run already."""

    key: str = ""  # empty: every key
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""  # empty: every effect

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPods:
    """The pods of one pool, as their template has them."""

    labels: Mapping[str, str]  # that all of them have, and nobody else's pods
    gpus_per_pod: int = 1  # of the resource; of each pod
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """All that has to be known to read a budget from a cluster. docs/kubernetes_budget.md explains each."""

    prefill: PoolPods
    decode: PoolPods
    resource: str = "nvidia.com/gpu"
    namespace: str | None = None  # of our pods; None: the one that we run in
    own_namespace_only: bool = False  # ask for no other pods: on these nodes nobody else uses the resource
    refresh_s: float = 10.0  # between two questions
    timeout_s: float = 5.0  # of each of the two lists of a question

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, values: object) -> "KubernetesSettings":
        """From what a YAML file holds. Raises ValueError naming the first value that makes no sense."""
        try:
            settings = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise ValueError(first_fault(error)) from error
        settings.check()
        return settings

    @property
    def pools(self) -> ByPool[PoolPods]:
        """The pods of either pool."""
        return ByPool(self.prefill, self.decode)

    def check(self) -> None:
        """Raises ValueError naming the first value that makes no sense."""
        for name in ("refresh_s", "timeout_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}, but must be above 0")
        for name, pods in zip(("prefill", "decode"), self.pools.both(), strict=True):
            if not pods.labels:
                raise ValueError(f"{name} has no labels: every pod would be ours")
            if pods.gpus_per_pod < 1:
                raise ValueError(f"{name} has {pods.gpus_per_pod} gpus_per_pod, but must have 1 or more")

    def check_beside(self, scaling: ScalingSettings) -> None:
        """Raises ValueError if whole replicas do not fill whole pods."""
        for name, (pods, limits) in zip(("prefill", "decode"), self.pools.zip(scaling.limits).both(), strict=True):
            a_pod, a_replica = pods.gpus_per_pod, limits.gpus_per_replica
            if a_pod % a_replica and a_replica % a_pod:
                raise ValueError(f"{name} has {a_pod} gpus_per_pod, which replicas of {a_replica} GPUs do not fill")

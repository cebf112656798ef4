"""What of Ray Serve's own types an autoscaling policy uses, so that it can be read and tested without Ray."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from baton.deployment.autoscaling.by_pool import ByPool


class DeploymentKey(Protocol):
    """Serve's `DeploymentID`."""

    @property
    def name(self) -> str:
        """Of the deployment."""
        ...


class ServeConfig(Protocol):
    """Serve's `AutoscalingConfig`."""

    upscale_delay_s: float
    downscale_delay_s: float
    downscale_to_zero_delay_s: float | None
    initial_replicas: int | None

    def get_upscaling_factor(self) -> float:
        """Of a step up, that is taken instead of the whole."""
        ...

    def get_downscaling_factor(self) -> float:
        """Of a step down."""
        ...


class ServeContext(Protocol):
    """Serve's `AutoscalingContext`."""

    target_num_replicas: int
    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int
    config: ServeConfig


Contexts = Mapping[DeploymentKey, ServeContext]
Targets = dict[DeploymentKey, int]
PolicyState = dict[DeploymentKey, dict[str, object]]


def serve_conflicts(contexts: Contexts, pools: ByPool[str]) -> Iterator[str]:
    """A line for each, with what would be right. `pools` are the names of those that are planned."""
    for key, context in contexts.items():
        if key.name in pools.both():
            yield from (f"{key.name}: {line}" for line in _of_pool(context.config))
        else:
            yield f"{key.name}: its size stays: {' and '.join(pools.both())} alone are sized; give it num_replicas"


def _of_pool(config: ServeConfig) -> Iterator[str]:
    if config.upscale_delay_s or config.downscale_delay_s or config.downscale_to_zero_delay_s:
        names = "upscale_delay_s and downscale_delay_s to 0, downscale_to_zero_delay_s not at all"
        yield f"set {names}; the plan has delays of its own"
    if not config.get_upscaling_factor() == config.get_downscaling_factor() == 1:
        yield "leave upscaling_factor and downscaling_factor out; they take it to other sizes than the planned ones"
    if config.initial_replicas is not None:
        yield "leave initial_replicas out; Serve goes back to it at each change of the bounds, whatever the load"

"""Protocols of the Ray Serve types that the policy uses, so that it can be imported and tested without Ray."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from baton.deployment.autoscaling.by_pool import ByPool


class DeploymentKey(Protocol):
    """Serve's `DeploymentID`."""

    @property
    def name(self) -> str:
        """Name of the deployment."""
        ...

    @property
    def app_name(self) -> str:
        """Name of its application."""
        ...


class ServeConfig(Protocol):
    """Serve's `AutoscalingConfig`."""

    upscale_delay_s: float
    downscale_delay_s: float
    downscale_to_zero_delay_s: float | None

    def get_upscaling_factor(self) -> float:
        """Multiplier that Serve applies to a planned increase."""
        ...

    def get_downscaling_factor(self) -> float:
        """Multiplier that Serve applies to a planned decrease."""
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
    """Yield one line with the remedy for each Serve option that interferes. `pools` are the planned deployments."""
    for key, context in contexts.items():
        if key.name in pools.both():
            yield from (f"{key.name}: {line}" for line in _of_pool(context.config))
        else:
            yield f"{key.name}: is not autoscaled, only {' and '.join(pools.both())} are; set num_replicas"


def _of_pool(config: ServeConfig) -> Iterator[str]:
    if config.upscale_delay_s or config.downscale_delay_s or config.downscale_to_zero_delay_s:
        yield (
            "set upscale_delay_s and downscale_delay_s to 0, and remove downscale_to_zero_delay_s; the policy has its "
            "own delays"
        )
    if not config.get_upscaling_factor() == config.get_downscaling_factor() == 1:
        yield "remove upscaling_factor and downscaling_factor; with them the sizes differ from the planned ones"

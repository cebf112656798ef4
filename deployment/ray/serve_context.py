"""What of Ray Serve's own types an autoscaling policy uses, so that it can be read and tested without Ray."""

from collections.abc import Mapping
from typing import Protocol


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

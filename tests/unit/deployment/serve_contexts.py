"""The part of Ray Serve's controller that a policy sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FakeKey:
    """A deployment's id."""

    name: str
    app_name: str = "default"


@dataclass
class FakeConfig:
    """Serve's own delays and factors, all off."""

    upscale_delay_s: float = 0.0
    downscale_delay_s: float = 0.0
    downscale_to_zero_delay_s: float | None = None
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0

    def get_upscaling_factor(self) -> float:
        """Return the factor, like Serve's config."""
        return self.upscaling_factor

    def get_downscaling_factor(self) -> float:
        """Return the factor, like Serve's config."""
        return self.downscaling_factor


@dataclass
class FakeContext:
    """A deployment."""

    target_num_replicas: int = 1
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 8
    config: FakeConfig = field(default_factory=FakeConfig)


def contexts(prefill: int = 1, decode: int = 1) -> dict[FakeKey, FakeContext]:
    """Return the contexts of both deployments with these targets."""
    return {
        FakeKey("prefill"): FakeContext(prefill),
        FakeKey("decode"): FakeContext(decode),
    }


def by_name(targets: Mapping[FakeKey, int]) -> dict[str, int]:
    """Return the targets by the deployments' names."""
    return {key.name: size for key, size in targets.items()}

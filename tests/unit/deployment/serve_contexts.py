"""Ray Serve's controller, as far as a policy sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FakeKey:
    """A deployment's id."""

    name: str


@dataclass
class FakeConfig:
    """Delays that are off, as they should be."""

    upscale_delay_s: float = 0.0
    downscale_delay_s: float = 0.0


@dataclass
class FakeContext:
    """A deployment."""

    target_num_replicas: int = 1
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 8
    config: FakeConfig = field(default_factory=FakeConfig)


def contexts(prefill: int = 1, decode: int = 1) -> dict[FakeKey, FakeContext]:
    """Both deployments, at these targets, and one that is not ours."""
    return {
        FakeKey("prefill"): FakeContext(prefill),
        FakeKey("decode"): FakeContext(decode),
        FakeKey("router"): FakeContext(),
    }


def by_name(targets: Mapping[FakeKey, int]) -> dict[str, int]:
    """The targets, by the deployments' names."""
    return {key.name: size for key, size in targets.items()}

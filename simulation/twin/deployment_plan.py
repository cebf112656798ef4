"""The deployment to simulate: numbers of replicas, and their scaling."""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.router.policy.targets import DEFAULT_TARGETS, Targets
from baton.simulation.twin.machine import Machine

START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    """One deployment of the twin. A replica counts as one GPU, even if it stands for a group of GPUs."""

    machine: Machine = field(default_factory=Machine)
    prefill: int = 0  # replicas of each role at the start
    decode: int = 0
    both: int = 0  # colocated; with decode workers they prefill for these, and decode what they have room for
    targets: Targets = DEFAULT_TARGETS  # of latency, for the router's prices
    scaling: ScalingSettings | None = None  # None: fixed sizes
    start_s: float = START_S  # from a replica's start to its first request
    seed: int = 0  # for the router's random choices

    @property
    def label(self) -> str:
        """Short description for reports."""
        if self.scaling is not None:
            return f"autoscaled within {self.scaling.budget_gpus}"
        if self.is_mixed:
            return f"{self.both} of both roles + {self.decode} decode"
        if self.both:
            return f"{self.both} colocated"
        return f"{self.prefill} prefill + {self.decode} decode"

    @property
    def is_mixed(self) -> bool:
        """Whether colocated workers take the place of prefill workers."""
        return self.both > 0 and self.decode > 0

    @property
    def num_replicas(self) -> int:
        """Number of replicas at the start."""
        return self.prefill + self.decode + self.both

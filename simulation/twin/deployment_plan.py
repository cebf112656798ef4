"""What is simulated: which replicas there are, and who changes their number."""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.router.policy.targets import Targets
from baton.simulation.twin.machine import Machine

START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    """One deployment of the twin; plain data. A replica is a GPU, or whatever group of them is counted as one."""

    machine: Machine = field(default_factory=Machine)
    prefill: int = 0  # replicas at the start
    decode: int = 0
    both: int = 0  # of both roles: beside decode workers these prefill, and decode what those have no room for
    targets: Targets | None = None  # what the router promises requests
    scaling: ScalingSettings | None = None  # None: the sizes stay
    start_s: float = START_S  # of a replica
    seed: int = 0  # of the router's chances

    @property
    def label(self) -> str:
        """For people."""
        if self.scaling is not None:
            return f"autoscaled within {self.scaling.budget_gpus}"
        if self.is_mixed:
            return f"{self.both} of both roles + {self.decode} decode"
        if self.both:
            return f"{self.both} colocated"
        return f"{self.prefill} prefill + {self.decode} decode"

    @property
    def is_mixed(self) -> bool:
        """Whether workers of both roles stand in the place of prefill workers."""
        return self.both > 0 and self.decode > 0

    @property
    def num_replicas(self) -> int:
        """At the start."""
        return self.prefill + self.decode + self.both

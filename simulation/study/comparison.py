"""A deployment beside the others that the same GPUs could have been."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.twin.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs over one trace."""

    trace: str
    num_gpus: int
    slo: SLO
    machine: str  # what a replica is, in words
    when: str
    asked: Outcome | None  # None: only the best was asked for
    best: Outcome | None  # of the fixed splits; None: there is no room for two pools
    colocated: Outcome
    splits: Sequence[Outcome]  # all that were tried, by their prefill replicas

    @property
    def outcomes(self) -> list[Outcome]:
        """What was asked for first."""
        return [each for each in (self.asked, self.best, self.colocated) if each is not None]

    def label(self, outcome: Outcome) -> str:
        """For people."""
        label = outcome.plan.label
        return f"best split: {label}" if outcome is self.best else label

    @property
    def num_requests(self) -> int:
        """Of the trace."""
        return len(self.colocated.records)

    @property
    def speed(self) -> str:
        """What the simulation itself did."""
        others = [each for each in self.outcomes if not any(each is split for split in self.splits)]
        runs = [*self.splits, *others]
        cpu_s = sum(each.cpu_s for each in runs)
        num_requests = sum(len(each.records) for each in runs)
        per_s = num_requests / max(cpu_s, 1e-9)
        return f"{len(runs)} runs, {num_requests:,} requests in {cpu_s:.1f} s of one core ({per_s:,.0f} a second)"

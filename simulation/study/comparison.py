"""A comparison of a deployment with others on the same GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.twin.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs with one trace."""

    trace: str
    num_gpus: int
    slo: SLO
    machine: str  # description of a replica
    when: str
    asked: Outcome | None  # the given deployment; None: only the best split is wanted
    best: Outcome | None  # best fixed split; None: too few GPUs for two pools
    colocated: Outcome
    splits: Sequence[Outcome]  # all that were tried, by number of prefill replicas
    tuned: Sequence[Outcome] = ()  # best settings of the autoscaler among those that were tried, cheapest first

    @property
    def outcomes(self) -> list[Outcome]:
        """The given deployment, the best split and the colocated deployment, as far as they exist."""
        return [each for each in (self.asked, self.best, self.colocated) if each is not None]

    def label(self, outcome: Outcome) -> str:
        """Return the name of a run in reports."""
        label = outcome.plan.label
        return f"best split: {label}" if outcome is self.best else label

    @property
    def num_requests(self) -> int:
        """Number of requests in the trace."""
        return len(self.colocated.records)

    @property
    def speed(self) -> str:
        """The simulation's own speed, as text."""
        others = [each for each in (*self.outcomes, *self.tuned) if not any(each is split for split in self.splits)]
        runs = [*self.splits, *others]
        cpu_s = sum(each.cpu_s for each in runs)
        num_requests = sum(len(each.records) for each in runs)
        per_s = num_requests / max(cpu_s, 1e-9)
        return f"{len(runs)} runs, {num_requests:,} requests in {cpu_s:.1f} s of CPU time ({per_s:,.0f} per second)"

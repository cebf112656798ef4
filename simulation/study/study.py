"""A study: a deployment and its alternatives on the same GPUs, run with one trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.study.comparison import Comparison
from baton.simulation.study.runs import RunAll, run_in_turn
from baton.simulation.study.search import SplitSearch
from baton.simulation.study.tuning import tune
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest

NoteRun = Callable[[str], None]  # called with the label of each finished run


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The deployments to compare, and their trace."""

    trace: str
    requests: Sequence[TraceRequest]
    num_gpus: int
    slo: SLO
    asked: DeploymentPlan | None  # the given deployment; None: only the best fixed split is wanted
    base: DeploymentPlan  # machine, times and seed of all other deployments
    machine: str  # description of a replica
    num_trials: int = 0  # settings of the autoscaler to try

    def run(self, run_all: RunAll = run_in_turn, note: NoteRun = lambda _: None) -> Comparison:
        """Run all deployments. Raises ValueError for an impossible plan."""
        splits: list[Outcome] = []

        def note_split(outcome: Outcome) -> None:
            splits.append(outcome)
            note(outcome.plan.label)

        plans = [plan for plan in (self.asked, replace(self.base, both=self.num_gpus)) if plan is not None]
        *asked, colocated = run_all(plans, self.requests)
        best = None
        if self.num_gpus > 1:
            note("the given deployment" if asked else colocated.plan.label)
            best = SplitSearch(self.base, self.requests, self.num_gpus, self.slo, run_all, note_split).best()
        tuned = []
        if self.num_trials and self.asked is not None:
            tuned = tune(self.asked, self.requests, self.slo, self.num_trials, run_all)
        return Comparison(
            trace=self.trace,
            num_gpus=self.num_gpus,
            slo=self.slo,
            machine=self.machine,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            asked=asked[0] if asked else None,
            best=best,
            colocated=colocated,
            splits=sorted(splits, key=lambda outcome: outcome.plan.prefill),
            tuned=tuned,
        )

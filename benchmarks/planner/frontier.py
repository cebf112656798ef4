"""The best fixed split of each number of GPUs, found with the whole trace known."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.study.runs import RunAll
from baton.simulation.study.search import SplitSearch
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest


@dataclass(frozen=True, slots=True)
class Comparison:
    """A planned run, or a part of it, and the fixed splits that it compares with."""

    good: float  # share of the requests
    num_gpus: float  # on average
    best_good: float  # of the best fixed split with as many GPUs, interpolated between whole numbers
    cheapest: Outcome  # the fewest GPUs whose best split has as many good requests


class Frontier:
    """Best splits by number of GPUs, searched when they are first needed."""

    def __init__(self, base: DeploymentPlan, requests: Sequence[TraceRequest], slo: SLO, run_all: RunAll) -> None:
        self._base = base
        self._requests = requests
        self._slo = slo
        self._run_all = run_all
        self._best: dict[int, Outcome] = {}

    def compare(self, outcome: Outcome, since_s: float) -> Comparison:
        """Compare the requests that arrived from `since_s` on, and the GPUs from then on."""
        good, num_gpus = self._share_of(outcome, since_s), mean_gpus(outcome, since_s)
        cheapest = self._best_of(self._cheapest(good, round(num_gpus), since_s))
        return Comparison(good, num_gpus, self._good_share(num_gpus, since_s), cheapest)

    def _best_of(self, num_gpus: int) -> Outcome:
        """Return the outcome of the best split of `num_gpus`, at least 2."""
        if num_gpus not in self._best:
            search = SplitSearch(self._base, self._requests, num_gpus, self._slo, self._run_all)
            self._best[num_gpus] = search.best()
        return self._best[num_gpus]

    def _share_of(self, outcome: Outcome, since_s: float) -> float:
        records = [record for record in outcome.records if record.due_s >= since_s]
        return sum(record.is_good(self._slo) for record in records) / max(1, len(records))

    def _good_share(self, num_gpus: float, since_s: float) -> float:
        """Return the share of good requests of the best split, interpolated between whole numbers of GPUs."""
        low = max(2, int(num_gpus))
        part = max(0.0, num_gpus - low)
        shares = [self._share_of(self._best_of(size), since_s) for size in (low, low + 1)[: 1 + (part > 0)]]
        return shares[0] if len(shares) == 1 else (1 - part) * shares[0] + part * shares[1]

    def _cheapest(self, good_share: float, around: int, since_s: float) -> int:
        """Return the fewest GPUs whose best split has this share of good requests, searched from `around`."""
        num_gpus = max(2, around)
        while self._good_share(num_gpus, since_s) < good_share and num_gpus < 2 * around + 2:
            num_gpus += 1
        while num_gpus > 2 and self._good_share(num_gpus - 1, since_s) >= good_share:
            num_gpus -= 1
        return num_gpus


def mean_gpus(outcome: Outcome, since_s: float) -> float:
    """Return the average number of GPUs from `since_s` to the end."""
    starts = [max(since_s, sizes.since_s) for sizes in outcome.sizes]
    ends = [*starts[1:], max(since_s, outcome.ended_s)]
    spent_s = sum(
        sum(sizes.gpus.both()) * (end_s - start_s)
        for sizes, start_s, end_s in zip(outcome.sizes, starts, ends, strict=True)
    )
    return spent_s / max(outcome.ended_s - since_s, 1e-9)

"""The fixed split of the GPUs between both pools that serves most requests well."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.study.runs import RunAll, run_in_turn
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest

NUM_COARSE = 5  # splits that are tried first, spread evenly
MAX_REQUESTS = 20_000  # of a longer trace's beginning, that splits are compared on
Score = tuple[int, float]


class SplitSearch:
    """Owns what was tried.

    Too few prefill replicas serve badly, and so do too few decode replicas: between them goodput has one summit. A few
    splits spread over all are tried first, then the neighbours of the best, at half the distance each time.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        requests: Sequence[TraceRequest],
        num_replicas: int,
        slo: SLO,
        run_all: RunAll = run_in_turn,
        note: Callable[[Outcome], None] = lambda _: None,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        """`note` hears of every split that was tried. Raises ValueError if two pools need more replicas."""
        if num_replicas < 2:
            raise ValueError("a prefill and a decode replica need 2 GPUs or more")
        self._plan = plan
        self._requests = requests
        self._num_replicas = num_replicas
        self._slo = slo
        self._run_all = run_all
        self._note = note
        self._max_requests = max_requests
        self._tried: dict[int, Outcome] = {}  # by prefill replicas

    def best(self) -> Outcome:
        """What the best split does with all requests; of equally good ones that with the shorter times."""
        most = self._num_replicas - 1
        distance = max(1, most // NUM_COARSE)
        best = self._best_of(range(1, self._num_replicas, distance))
        while distance > 1:
            distance //= 2
            best = self._best_of(_around(best, distance, most))
        while (better := self._best_of(_around(best, 1, most))) != best:
            best = better
        if len(self._requests) <= self._max_requests:
            return self._tried[best]
        return self._run_all([self._split(best)], self._requests)[0]

    def _best_of(self, places: Sequence[int]) -> int:
        """Of equally good ones the first."""
        untried = [place for place in places if place not in self._tried]
        outcomes = self._run_all([self._split(place) for place in untried], self._requests[: self._max_requests])
        for place, outcome in zip(untried, outcomes, strict=True):
            self._tried[place] = outcome
            self._note(outcome)
        return max(places, key=lambda place: score_of(self._tried[place], self._slo))

    def _split(self, num_prefill: int) -> DeploymentPlan:
        return replace(self._plan, prefill=num_prefill, decode=self._num_replicas - num_prefill, both=0, scaling=None)


def score_of(outcome: Outcome, slo: SLO) -> Score:
    """Greater is better: requests within the SLO, and how far the median request is from it."""
    return outcome.num_good(slo), -outcome.median_excess(slo)


def _around(place: int, distance: int, most: int) -> list[int]:
    """The place, and those on both sides of it."""
    return [each for each in (place, place - distance, place + distance) if 1 <= each <= most]

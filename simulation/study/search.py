"""Search for the fixed split of the GPUs between the two pools with the highest goodput."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.study.runs import RunAll, run_in_turn
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest

NUM_COARSE = 5  # evenly spread splits that are tried first
MAX_REQUESTS = 20_000  # splits are compared on the first requests of longer traces
Score = tuple[int, float]


class SplitSearch:
    """The search and the splits that it has tried.

    Goodput has one maximum between too few prefill and too few decode replicas. A few evenly spread splits are tried
    first, then the neighbours of the best one, at half the distance each time.
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
        """`note` is called with the outcome of each split. Raises ValueError for fewer than 2 replicas."""
        if num_replicas < 2:
            raise ValueError("a prefill and a decode replica need 2 GPUs or more")
        self._plan = plan
        self._requests = requests
        self._num_replicas = num_replicas
        self._slo = slo
        self._run_all = run_all
        self._note = note
        self._max_requests = max_requests
        self._tried: dict[int, Outcome] = {}  # by number of prefill replicas

    def best(self) -> Outcome:
        """Return the outcome of the best split with all requests; the latency decides between equally good ones."""
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
        """Try those that are untried, and return the best of all; the first of equally good ones."""
        untried = [place for place in places if place not in self._tried]
        outcomes = self._run_all([self._split(place) for place in untried], self._requests[: self._max_requests])
        for place, outcome in zip(untried, outcomes, strict=True):
            self._tried[place] = outcome
            self._note(outcome)
        return max(places, key=lambda place: score_of(self._tried[place], self._slo))

    def _split(self, num_prefill: int) -> DeploymentPlan:
        return replace(self._plan, prefill=num_prefill, decode=self._num_replicas - num_prefill, both=0, scaling=None)


def score_of(outcome: Outcome, slo: SLO) -> Score:
    """Return the score of an outcome, higher is better: requests within the SLO, then the median request's latency."""
    return outcome.num_good(slo), -outcome.median_excess(slo)


def _around(place: int, distance: int, most: int) -> list[int]:
    """Return a split and those at `distance` on both sides of it."""
    return [each for each in (place, place - distance, place + distance) if 1 <= each <= most]

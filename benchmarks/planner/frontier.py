"""The best fixed split of each number of GPUs, found with the whole trace known."""

from collections.abc import Sequence

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.study.runs import RunAll
from baton.simulation.study.search import SplitSearch
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest


class Frontier:
    """Best splits by number of GPUs, searched when they are first needed."""

    def __init__(self, base: DeploymentPlan, requests: Sequence[TraceRequest], slo: SLO, run_all: RunAll) -> None:
        self._base = base
        self._requests = requests
        self._slo = slo
        self._run_all = run_all
        self._best: dict[int, Outcome] = {}

    def best(self, num_gpus: int) -> Outcome:
        """Return the outcome of the best split of `num_gpus`, at least 2."""
        if num_gpus not in self._best:
            search = SplitSearch(self._base, self._requests, num_gpus, self._slo, self._run_all)
            self._best[num_gpus] = search.best()
        return self._best[num_gpus]

    def good_share(self, num_gpus: float) -> float:
        """Return the share of good requests of the best split, interpolated between whole numbers of GPUs."""
        low = max(2, int(num_gpus))
        part = max(0.0, num_gpus - low)
        shares = [
            self.best(size).num_good(self._slo) / len(self._requests) for size in (low, low + 1)[: 1 + (part > 0)]
        ]
        return shares[0] if len(shares) == 1 else (1 - part) * shares[0] + part * shares[1]

    def cheapest(self, good_share: float, around: int) -> int:
        """Return the fewest GPUs whose best split has this share of good requests, searched from `around`."""
        num_gpus = max(2, around)
        while self.good_share(num_gpus) < good_share and num_gpus < 2 * around + 2:
            num_gpus += 1
        while num_gpus > 2 and self.good_share(num_gpus - 1) >= good_share:
            num_gpus -= 1
        return num_gpus

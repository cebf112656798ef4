"""Where prompts are to be computed: the share of the requests that decode workers prefill themselves.

The router lets a decode worker compute a prompt where its first token comes sooner that way. So a deployment with few
prefill workers computes most prompts at decode workers, and needs fewer GPUs if time per output token leaves room for
them. The planner chooses the share for which both pools together need the fewest GPUs; with these sizes, the router's
prices lead to about that share. Since the router may have reasons of its own for handing prompts over, the share grows
from the measured one in steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.prediction.pools_model import PoolsModel
from baton.deployment.autoscaling.snapshot import Traffic

SHARES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)  # of the requests, that are tried
NUM_HALVINGS = 7  # of the search for the goodput
RECOVERY_S = 14400.0  # in which the limit of the share rises from 0 to 1
CLEARLY_MORE = 1.1  # ratio, below which the present share stays


@dataclass(frozen=True, slots=True)
class Worth:
    """How good a share is."""

    model: PoolsModel
    requests_per_s: float
    sizes: ByPool[int]
    num_gpus: int
    goodput: float  # requests per second; infinite if the budget is enough for all

    @classmethod
    def of(cls, model: PoolsModel, requests_per_s: float, budget: Budget) -> "Worth":
        """Judge a model for a rate, within a budget."""
        sizes = model.sizes(requests_per_s, budget)
        num_gpus = budget.cost(sizes)
        goodput = inf
        if num_gpus > budget.gpus or not model.holds(sizes, requests_per_s):
            goodput = _goodput(model, requests_per_s, budget)
        return cls(model, requests_per_s, sizes, num_gpus, goodput)

    def exceeds(self, other: "Worth") -> bool:
        """Whether this one is clearly better."""
        if self.goodput != other.goodput:
            return self.goodput > CLEARLY_MORE * other.goodput
        if self.num_gpus != other.num_gpus or self.goodput < inf:
            return CLEARLY_MORE * self.num_gpus <= other.num_gpus
        return CLEARLY_MORE * self.strain() < other.strain()

    def strain(self) -> float:
        """Return the larger ratio of a predicted latency to its objective."""
        return self.model.strain(self.sizes, self.requests_per_s)


def measured_share(traffic: Traffic) -> float:
    """Return the share of the uncached tokens that decode workers compute now; 0 if routers do not report it."""
    if traffic.remote_tokens is None or traffic.uncached_tokens.mean <= 0:
        return 0.0
    return max(0.0, 1 - traffic.remote_share * traffic.remote_tokens.mean / traffic.uncached_tokens.mean)


@dataclass(frozen=True, slots=True)
class LocalLimit:
    """Largest share to try: the planned share grows from the measured one, since the router has its own reasons.

    If the first token is late although the pools have the planned sizes, the router does not follow the plan: then no
    more than the measured share is planned, and the limit rises slowly from there.
    """

    limit: float = 1.0

    def after(self, measured: float, is_late: bool, dt_s: float) -> "LocalLimit":
        """Return the limit after a snapshot, `dt_s` after the last one."""
        if is_late:
            return LocalLimit(min(self.limit, measured))
        return LocalLimit(min(1.0, self.limit + dt_s / RECOVERY_S))

    def most(self, traffic: Traffic) -> float:
        """Return the largest share to try."""
        if traffic.remote_tokens is None:
            return 0.0
        return min(self.limit, 2 * measured_share(traffic) + 0.1)


def best_model(
    make: Callable[[float], PoolsModel], present: float, most: float, requests_per_s: float, budget: Budget
) -> PoolsModel:
    """Return the model of the best share: that of the fewest GPUs or, beyond the budget, of the most goodput.

    `make` makes the model of a share, up to `most`. The `present` one, chosen before, stays unless another is clearly
    better.
    """
    best = Worth.of(make(min(present, most)), requests_per_s, budget)
    for share in SHARES:
        if share <= most:
            worth = Worth.of(make(share), requests_per_s, budget)
            if worth.exceeds(best):
                best = worth
    return best.model


def _goodput(model: PoolsModel, requests_per_s: float, budget: Budget) -> float:
    """Return the highest rate for which the budget is enough, below one for which it is not."""
    low, high = 0.0, requests_per_s
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        sizes = model.sizes(middle, budget)
        if budget.cost(sizes) <= budget.gpus and model.holds(sizes, middle):
            low = middle
        else:
            high = middle
    return low

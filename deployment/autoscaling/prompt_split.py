"""Where prompts are to be computed: the share of the requests that decode workers prefill themselves.

The router lets a decode worker compute a prompt where its first token comes sooner that way. So a deployment with few
prefill workers computes most prompts at decode workers, and needs fewer GPUs if time per output token leaves room for
them. The planner chooses the share for which both pools together need the fewest GPUs; with these sizes, the router's
prices lead to about that share.
"""

from collections.abc import Callable
from dataclasses import dataclass

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.decode_model import DecodeModel
from baton.deployment.autoscaling.pool_model import smallest_size
from baton.deployment.autoscaling.prefill_model import PrefillModel

SHARES = tuple(place / 10 for place in range(10)) + (0.95,)  # of the requests, that are tried


@dataclass(frozen=True, slots=True)
class Models:
    """The models of both pools for a share of local prompts."""

    local_share: float
    prefill: PrefillModel
    decode: DecodeModel

    def sizes(self, requests_per_s: float, budget: Budget) -> ByPool[int]:
        """Return the smallest sizes that hold; those of the whole budget if none do."""
        least, most = budget.least, budget.most
        return ByPool(
            smallest_size(self.prefill, requests_per_s, least.prefill, most.prefill),
            smallest_size(self.decode, requests_per_s, least.decode, most.decode),
        )

    def strain(self, sizes: ByPool[int], requests_per_s: float) -> float:
        """Return the larger ratio of a predicted latency to its objective."""
        return max(
            self.prefill.predicted_s(sizes.prefill, requests_per_s) / self.prefill.ttft_s,
            self.decode.predicted_s(sizes.decode, requests_per_s) / self.decode.slo.tpot_s,
        )


def choose_models(
    make: Callable[[float], Models], present: float, requests_per_s: float, budget: Budget
) -> Models:
    """Return the models of the best share. `make` makes those of a share; `present`: the share chosen before.

    Another share is chosen only if it needs fewer GPUs.
    """

    def cost(models: Models) -> tuple[int, float]:
        sizes = models.sizes(requests_per_s, budget)
        return budget.cost(sizes), models.strain(sizes, requests_per_s)

    best = make(present)
    least = cost(best)
    for share in SHARES:
        models = make(share)
        found = cost(models)
        if found[0] < least[0] or (found[0] == least[0] and found[1] < 0.9 * least[1]):
            best, least = models, found
    return best

"""The budget between two pools that both want more."""

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.need import Need
from baton.deployment.autoscaling.pool_model import PoolModel

# Times as many requests, beside chance in the rates, that a split has to serve to be better for sure: a single prompt
# of a hundred times the usual length makes the pool that has it look half as fast for as long as a window.
SURELY_BETTER = 2.0


def goodput(models: ByPool[PoolModel], sizes: ByPool[int]) -> float:
    """Requests per second that hold the SLO: the lesser of what either pool holds.

    As DistServe has it (Zhong et al., OSDI 2024), with the two phases on pools of their own.
    """
    return min(models.prefill.rate(sizes.prefill), models.decode.rate(sizes.decode))


def best_split(models: ByPool[PoolModel], needs: ByPool[int], budget: Budget) -> ByPool[int]:
    """The sizes within the budget with most goodput, none above its need.

    With each replica for prefill its rate rises and decode's falls, so the best is where they cross, or one before.
    """
    low, high = budget.least.prefill, budget.most.prefill
    while low < high:
        middle = (low + high) // 2
        if models.prefill.rate(middle) >= models.decode.rate(_beside(middle, budget)):
            high = middle
        else:
            low = middle + 1
    crossing = [ByPool(size, _beside(size, budget)) for size in (low - 1, low) if size >= budget.least.prefill]
    best = max(crossing, key=lambda sizes: goodput(models, sizes))
    prefill = max(min(best.prefill, needs.prefill), budget.least.prefill)
    decode = min(needs.decode, _beside(prefill, budget))
    prefill = min(needs.prefill, budget.beside(ByPool(prefill, decode)).prefill)
    return ByPool(max(prefill, budget.least.prefill), max(decode, budget.least.decode))


def fit(
    models: ByPool[PoolModel | None], needs: ByPool[int], wanted: ByPool[int], budget: Budget, margin: float
) -> ByPool[int]:
    """The needs if the budget has room for them; else the best split, or the present one if it is nearly as good."""
    if budget.cost(needs) <= budget.gpus:
        return needs
    if models.prefill is None or models.decode is None:
        return _beside_unknown(models, needs, budget)
    known = ByPool(models.prefill, models.decode)
    best = best_split(known, needs, budget)
    held = wanted.zip(needs).map(min)
    if budget.cost(held) > budget.gpus:
        return best
    present = best_split(known, needs, budget.keeping(held))  # what no pool holds and needs is shared anew
    return present if goodput(known, present) * (1 + margin) >= goodput(known, best) else best


def sure_split(needs: ByPool[Need], wanted: ByPool[int], budget: Budget) -> ByPool[int]:
    """The present sizes, changed only where that is no chance.

    A pool keeps what it needs of what it has, and gets more only if a load that is lower by what may be chance asks for
    it. Where there is not enough for both, another split must serve several times as many.
    """
    sure = needs.zip(wanted).map(lambda pair: max(pair[0].sure, min(pair[0].least, pair[1])))
    chance = (1 + needs.prefill.chance) * (1 + needs.decode.chance)
    return fit(needs.map(lambda need: need.model), sure, wanted, budget, SURELY_BETTER * chance - 1)


def _beside(prefill: int, budget: Budget) -> int:
    return budget.beside(ByPool(prefill, budget.least.decode)).decode


def _beside_unknown(models: ByPool[PoolModel | None], needs: ByPool[int], budget: Budget) -> ByPool[int]:
    """A pool of which nothing is known keeps what it has; the other gets what is left."""
    room = budget.beside(needs)
    if models.prefill is not None:
        return ByPool(min(needs.prefill, room.prefill), needs.decode)
    if models.decode is not None:
        return ByPool(needs.prefill, min(needs.decode, room.decode))
    return needs

"""Split of a budget that is too small for what both pools need."""

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.need import Need
from baton.deployment.autoscaling.prediction.pool_model import PoolModel

# Goodput ratio, on top of chance in the rates, that makes a split surely better: a single prompt of a hundred times the
# usual length makes its pool look half as fast for a whole window.
SURELY_BETTER = 2.0


def goodput(models: ByPool[PoolModel], sizes: ByPool[int]) -> float:
    """Return the requests per second within the SLO: the smaller rate of both pools.

    The goodput of DistServe (Zhong et al., OSDI 2024), for separate pools.
    """
    return min(models.prefill.rate(sizes.prefill), models.decode.rate(sizes.decode))


def best_split(models: ByPool[PoolModel], needs: ByPool[int], budget: Budget) -> ByPool[int]:
    """Return the sizes within the budget with the most goodput, neither above its need.

    More prefill replicas raise prefill's rate and lower decode's, so the best is where they cross, or one before.
    """
    low, high = budget.least.prefill, budget.most.prefill
    while low < high:
        middle = (low + high) // 2
        if models.prefill.rate(middle) >= models.decode.rate(_decode_room(middle, budget)):
            high = middle
        else:
            low = middle + 1
    crossing = [ByPool(size, _decode_room(size, budget)) for size in (low - 1, low) if size >= budget.least.prefill]
    best = max(crossing, key=lambda sizes: goodput(models, sizes))
    prefill = max(min(best.prefill, needs.prefill), budget.least.prefill)
    decode = min(needs.decode, _decode_room(prefill, budget))
    prefill = min(needs.prefill, budget.largest(ByPool(prefill, decode)).prefill)
    return ByPool(max(prefill, budget.least.prefill), max(decode, budget.least.decode))


def fit(
    models: ByPool[PoolModel | None], needs: ByPool[int], wanted: ByPool[int], budget: Budget, margin: float
) -> ByPool[int]:
    """Return the needs if they fit the budget; otherwise the best split, or the current one if nearly as good."""
    if budget.cost(needs) <= budget.gpus:
        return needs
    if models.prefill is None or models.decode is None:
        return _split_with_unknown(models, needs, budget)
    known = ByPool(models.prefill, models.decode)
    best = best_split(known, needs, budget)
    held = wanted.zip(needs).map(min)
    if budget.cost(held) > budget.gpus:
        return best
    present = best_split(known, needs, budget.keeping(held))  # only GPUs beyond the current sizes are split again
    return present if goodput(known, present) * (1 + margin) >= goodput(known, best) else best


def sure_split(needs: ByPool[Need], wanted: ByPool[int], budget: Budget) -> ByPool[int]:
    """Return the current sizes, changed only where the change is not due to chance.

    A pool keeps what it needs of its size, and grows only if it needs more even for a load lower by `chance`. If the
    budget is too small for both, another split must have several times the goodput.
    """
    sure = needs.zip(wanted).map(lambda pair: max(pair[0].sure, min(pair[0].least, pair[1])))
    chance = (1 + needs.prefill.chance) * (1 + needs.decode.chance)
    return fit(needs.map(lambda need: need.model), sure, wanted, budget, SURELY_BETTER * chance - 1)


def _decode_room(prefill: int, budget: Budget) -> int:
    return budget.largest(ByPool(prefill, budget.least.decode)).decode


def _split_with_unknown(models: ByPool[PoolModel | None], needs: ByPool[int], budget: Budget) -> ByPool[int]:
    """Keep the size of a pool without a model; the other gets the rest."""
    room = budget.largest(needs)
    if models.prefill is not None:
        return ByPool(min(needs.prefill, room.prefill), needs.decode)
    if models.decode is not None:
        return ByPool(needs.prefill, min(needs.decode, room.decode))
    return needs

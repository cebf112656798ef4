"""The budget between two pools that both want more."""

from deployment.autoscaling.budget import Budget
from deployment.autoscaling.by_pool import ByPool
from deployment.autoscaling.pool_model import PoolModel


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
    is_nearly_as_good = goodput(known, wanted) * (1 + margin) >= goodput(known, best)
    return wanted if is_nearly_as_good and _uses(budget, wanted, needs) else best


def _uses(budget: Budget, wanted: ByPool[int], needs: ByPool[int]) -> bool:
    """Whether the sizes are within the budget, and no replica more that is needed would be."""
    room = budget.beside(wanted)
    is_full = wanted.prefill >= min(room.prefill, needs.prefill) and wanted.decode >= min(room.decode, needs.decode)
    return is_full and budget.cost(wanted) <= budget.gpus


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

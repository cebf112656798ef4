"""Part of the wanted sizes that can be granted now without ever exceeding the budget."""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.flips import Flips, choose_flips
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolsSnapshot


@dataclass(frozen=True, slots=True)
class Grants:
    """Granted sizes, including `flips`."""

    sizes: ByPool[int]
    flips: Flips = field(default_factory=Flips)


def grant(
    wanted: ByPool[int],
    last: Grants,
    arrived: ByPool[int],
    snapshot: PoolsSnapshot,
    budget: Budget,
    settings: ScalingSettings,
) -> Grants:
    """Shrink at once, and grow by the free GPUs.

    A replica uses its GPUs from when it is granted until it has ended. So starting and draining replicas count too, and
    overdue ones, and granted ones that have not begun to start. A flip keeps its GPUs.
    """
    granted = ByPool(last.sizes.prefill - last.flips.to_prefill, last.sizes.decode - last.flips.to_decode)
    held = granted.zip(arrived).map(max)
    in_use = held.zip(snapshot.pools.map(lambda pool: pool.num_live)).map(max)
    free = budget.gpus - budget.cost(in_use) - budget.cost(snapshot.pools.map(lambda pool: pool.num_draining))
    flips = choose_flips(wanted, held, free, snapshot, budget, settings)
    sizes = held.zip(flips.into).map(sum)
    sizes = wanted.zip(_grown(sizes, wanted, free, budget)).map(min)
    return Grants(sizes, flips)


def _grown(sizes: ByPool[int], wanted: ByPool[int], free: int, budget: Budget) -> ByPool[int]:
    """Grow by one replica at a time, each for the pool with the smaller fraction of its wanted size."""
    prefill, decode = sizes.both()
    costs = budget.limits.map(lambda limits: limits.gpus_per_replica)
    while True:
        can_prefill = prefill < wanted.prefill and costs.prefill <= free
        can_decode = decode < wanted.decode and costs.decode <= free
        if can_prefill and (not can_decode or prefill * wanted.decode <= decode * wanted.prefill):
            prefill, free = prefill + 1, free - costs.prefill
        elif can_decode:
            decode, free = decode + 1, free - costs.decode
        else:
            return ByPool(prefill, decode)

"""Replicas that switch role instead of being stopped in one pool and started in the other."""

from dataclasses import dataclass

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.input_check import known
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolSnapshot, PoolsSnapshot


@dataclass(frozen=True, slots=True)
class Flips:
    """Replicas that each pool is to get from the other, after draining. Repeated until the switch has started."""

    to_prefill: int = 0
    to_decode: int = 0

    @property
    def into(self) -> ByPool[int]:
        """Flips by the pool that grows."""
        return ByPool(self.to_prefill, self.to_decode)


def choose_flips(
    wanted: ByPool[int],
    held: ByPool[int],
    free_gpus: int,
    snapshot: PoolsSnapshot,
    budget: Budget,
    settings: ScalingSettings,
) -> Flips:
    """Return the flips from a pool that is too large to one that is too small, if a flip is faster than a start.

    A start on a free GPU takes only the start time; other starts must also wait for a replica to drain, like a flip.
    """
    sizes = {limits.gpus_per_replica for limits in budget.limits.both()}
    if settings.flip_s is None or len(sizes) > 1:
        return Flips()
    num_free = max(0, free_gpus) // sizes.pop()
    prefill, decode = snapshot.pools.both()
    return Flips(
        _count(decode, wanted.decode, prefill, wanted.prefill - held.prefill, num_free, settings.flip_s, settings),
        _count(prefill, wanted.prefill, decode, wanted.decode - held.decode, num_free, settings.flip_s, settings),
    )


def _count(
    source: PoolSnapshot,
    kept: int,
    sink: PoolSnapshot,
    lack: int,
    num_free: int,
    flip_s: float,
    settings: ScalingSettings,
) -> int:
    """Return how many of the source's surplus replicas would serve in the sink sooner by a flip than by a start."""
    start_s, drain_s = known(sink.start_s, settings.start_s), known(source.drain_s, settings.drain_s)
    if flip_s >= start_s:
        return 0
    if drain_s + flip_s >= start_s:
        lack -= num_free  # a start on a free GPU is quicker than a flip
    return max(0, min(source.num_ready - kept, lack))

"""GPU budget that both pools share."""

from dataclasses import dataclass, replace

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import PoolLimits


@dataclass(frozen=True, slots=True)
class Budget:
    """GPUs that may be used at the same time, and the limits of both pools."""

    gpus: int
    limits: ByPool[PoolLimits]

    @property
    def least(self) -> ByPool[int]:
        """Minimum sizes while there are requests."""
        return self.limits.map(lambda limits: limits.min_replicas)

    @property
    def most(self) -> ByPool[int]:
        """Largest size of each pool while the other has its minimum."""
        return self.largest(self.least)

    def cost(self, sizes: ByPool[int]) -> int:
        """Return the GPUs that pools of these sizes use."""
        return sum(size * limits.gpus_per_replica for size, limits in sizes.zip(self.limits).both())

    def largest(self, sizes: ByPool[int]) -> ByPool[int]:
        """Return the largest size of each pool while the other has its size in `sizes`."""
        prefill, decode = self.limits.both()
        return ByPool(
            _size(self.gpus - sizes.decode * decode.gpus_per_replica, prefill),
            _size(self.gpus - sizes.prefill * prefill.gpus_per_replica, decode),
        )

    def keeping(self, sizes: ByPool[int]) -> "Budget":
        """Return the budget with these sizes as the minimum."""
        pairs = self.limits.zip(sizes)
        return Budget(self.gpus, pairs.map(lambda pair: replace(pair[0], min_replicas=pair[1])))


def _size(gpus: int, limits: PoolLimits) -> int:
    size = max(limits.min_replicas, gpus // limits.gpus_per_replica)
    return size if limits.max_replicas is None else min(size, limits.max_replicas)

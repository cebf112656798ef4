"""The GPUs that both pools share."""

from dataclasses import dataclass, replace

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import PoolLimits


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used at once, and what sizes cost."""

    gpus: int
    limits: ByPool[PoolLimits]

    @property
    def least(self) -> ByPool[int]:
        """Sizes that are never gone below while there are requests."""
        return self.limits.map(lambda limits: limits.min_replicas)

    @property
    def most(self) -> ByPool[int]:
        """Sizes that either can have while the other has its least."""
        return self.beside(self.least)

    def cost(self, sizes: ByPool[int]) -> int:
        """GPUs of so many replicas."""
        return sum(size * limits.gpus_per_replica for size, limits in sizes.zip(self.limits).both())

    def beside(self, sizes: ByPool[int]) -> ByPool[int]:
        """How large each pool can be beside the other's size."""
        prefill, decode = self.limits.both()
        return ByPool(
            _size(self.gpus - sizes.decode * decode.gpus_per_replica, prefill),
            _size(self.gpus - sizes.prefill * prefill.gpus_per_replica, decode),
        )

    def keeping(self, sizes: ByPool[int]) -> "Budget":
        """The same, with no pool going below its size."""
        pairs = self.limits.zip(sizes)
        return Budget(self.gpus, pairs.map(lambda pair: replace(pair[0], min_replicas=pair[1])))


def _size(gpus: int, limits: PoolLimits) -> int:
    size = max(limits.min_replicas, gpus // limits.gpus_per_replica)
    return size if limits.max_replicas is None else min(size, limits.max_replicas)

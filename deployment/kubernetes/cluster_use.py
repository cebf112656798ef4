"""Use of a cluster's resources at one moment."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from math import ceil

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.node_use import NodeUse
from baton.deployment.kubernetes.pod_use import PodUse


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """Nodes, and pods that have not ended, as the API server listed them."""

    nodes: tuple[NodeUse, ...]
    pods: tuple[PodUse, ...]

    @property
    def placed_gpus(self) -> int:
        """GPUs of Baton's scheduled pods."""
        return _sum(pod.amount for pod in self.pods if pod.is_ours and pod.node is not None)

    @property
    def pending_gpus(self) -> int:
        """GPUs that Baton's pending pods request."""
        return _sum(pod.amount for pod in self.pods if pod.is_ours and pod.node is None)

    @property
    def num_placed(self) -> ByPool[int]:
        """Number of scheduled pods of each pool."""
        placed = [pod.is_of for pod in self.pods if pod.node is not None]
        return ByPool(sum(each.prefill for each in placed), sum(each.decode for each in placed))

    @property
    def num_pending(self) -> ByPool[int]:
        """Number of pending pods of each pool."""
        pending = [pod.is_of for pod in self.pods if pod.node is None]
        return ByPool(sum(each.prefill for each in pending), sum(each.decode for each in pending))


def _sum(amounts: Iterable[Decimal]) -> int:
    return ceil(sum(amounts, Decimal(0)))

"""Free capacity by node. A pod must fit on one node, so capacity left on several nodes does not add up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.node_use import NodeUse
from baton.deployment.kubernetes.pod_use import PodUse


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Free GPUs of one node for Baton's pods."""

    gpus: int
    takes: ByPool[bool]

    def pods(self, gpus_per_pod: ByPool[int]) -> ByPool[int]:
        """Return how many pods of each pool fit, without pods of the other pool."""
        return gpus_per_pod.zip(self.takes).map(lambda each: self.gpus // each[0] if each[1] else 0)

    def filled(self, gpus_per_pod: ByPool[int]) -> int:
        """Return the most GPUs that whole pods of both pools can use together."""
        most, alone = 0, self.pods(gpus_per_pod)
        for num_prefill in range(alone.prefill + 1):
            of_prefill = num_prefill * gpus_per_pod.prefill
            left = (self.gpus - of_prefill) // gpus_per_pod.decode if self.takes.decode else 0
            most = max(most, of_prefill + left * gpus_per_pod.decode)
            if most == self.gpus:
                break
        return most


def room(nodes: Sequence[NodeUse], pods: Sequence[PodUse]) -> list[NodeRoom]:
    """Return the free GPUs of each node that accepts Baton's pods, at least 0 and at most the node's capacity."""
    used = _used_by_node(pods)
    return [
        NodeRoom(max(0, floor(node.allocatable - used.get(node.name, Decimal(0)))), node.takes)
        for node in nodes
        if node.is_usable
    ]


def num_replicas(num_pods: int, gpus_per_pod: int, gpus_per_replica: int) -> int:
    """Return the whole replicas in this many pods; a pod may hold several, or a replica may span several pods."""
    if gpus_per_replica <= gpus_per_pod:
        return num_pods * (gpus_per_pod // gpus_per_replica)
    return num_pods // -(-gpus_per_replica // gpus_per_pod)


def _used_by_node(pods: Sequence[PodUse]) -> Mapping[str, Decimal]:
    used: dict[str, Decimal] = {}
    for pod in pods:
        if pod.node is not None:
            used[pod.node] = used.get(pod.node, Decimal(0)) + pod.amount
    return used

"""What is free, node by node: a pod lies on one node, so what is left on several is no place for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.node_use import NodeUse
from baton.deployment.kubernetes.pod_use import PodUse


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What new pods of ours could get on one node."""

    gpus: int
    takes: ByPool[bool]

    def pods(self, gpus_per_pod: ByPool[int]) -> ByPool[int]:
        """How many of either pool fit, if none of the other one come."""
        return gpus_per_pod.zip(self.takes).map(lambda each: self.gpus // each[0] if each[1] else 0)

    def filled(self, gpus_per_pod: ByPool[int]) -> int:
        """Most GPUs that whole pods of both pools could take together."""
        most, alone = 0, self.pods(gpus_per_pod)
        for num_prefill in range(alone.prefill + 1):
            of_prefill = num_prefill * gpus_per_pod.prefill
            left = (self.gpus - of_prefill) // gpus_per_pod.decode if self.takes.decode else 0
            most = max(most, of_prefill + left * gpus_per_pod.decode)
            if most == self.gpus:
                break
        return most


def room(nodes: Sequence[NodeUse], pods: Sequence[PodUse]) -> list[NodeRoom]:
    """What is free on each node that takes pods of ours: never negative, and never more than the node has."""
    taken = _taken(pods)
    return [
        NodeRoom(max(0, floor(node.allocatable - taken.get(node.name, Decimal(0)))), node.takes)
        for node in nodes
        if node.is_usable
    ]


def num_replicas(num_pods: int, gpus_per_pod: int, gpus_per_replica: int) -> int:
    """Whole replicas that so many pods hold: several in a pod, or one in several pods."""
    if gpus_per_replica <= gpus_per_pod:
        return num_pods * (gpus_per_pod // gpus_per_replica)
    return num_pods // -(-gpus_per_replica // gpus_per_pod)


def _taken(pods: Sequence[PodUse]) -> Mapping[str, Decimal]:
    taken: dict[str, Decimal] = {}
    for pod in pods:
        if pod.node is not None:
            taken[pod.node] = taken.get(pod.node, Decimal(0)) + pod.amount
    return taken

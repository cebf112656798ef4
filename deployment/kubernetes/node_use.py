"""Capacity of one node."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.api_objects import Node, Taint, condition, parse_quantity
from baton.deployment.kubernetes.settings import KubernetesSettings, PoolPods, Toleration

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")  # PreferNoSchedule does not repel


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node of the cluster."""

    name: str
    allocatable: Decimal  # amount of the resource for all its pods
    takes: ByPool[bool]  # whether it accepts new pods of the pool

    @property
    def is_usable(self) -> bool:
        """Whether it accepts new pods of either pool."""
        return any(self.takes.both())


def node_use(node: Node, settings: KubernetesSettings) -> NodeUse:
    """Return the node's capacity. Raises ValueError for an invalid quantity."""
    try:
        allocatable = parse_quantity(node.status.allocatable.get(settings.resource, "0"))
    except ValueError as error:
        raise ValueError(f"node {node.metadata.name}: {error}") from error
    return NodeUse(node.metadata.name, allocatable, settings.pools.map(lambda pods: takes(node, pods)))


def takes(node: Node, pods: PoolPods) -> bool:
    """Whether the scheduler would place a new pod here if there is room."""
    ready = condition(node.status.conditions, "Ready")
    is_up = ready is not None and ready.status == "True" and node.metadata.deletion_timestamp is None
    if not is_up or node.spec.unschedulable:
        return False
    if not pods.node_selector.items() <= node.metadata.labels.items():
        return False
    return all(tolerated(taint, pods.tolerations) for taint in node.spec.taints)


def tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Whether a pod with these tolerations may run despite the taint."""
    return taint.effect not in REPELLING_EFFECTS or any(_matches(taint, each) for each in tolerations)


def _matches(taint: Taint, toleration: Toleration) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value

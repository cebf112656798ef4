"""What one node has."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.api_objects import Node, Taint, condition, parse_quantity
from baton.deployment.kubernetes.settings import KubernetesSettings, PoolPods, Toleration

KEEPS_AWAY = ("NoSchedule", "NoExecute")  # effects; PreferNoSchedule does not


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node of the cluster."""

    name: str
    allocatable: Decimal  # of the resource, to all its pods together
    takes: ByPool[bool]  # new pods of that pool

    @property
    def is_usable(self) -> bool:
        """Whether new pods of either pool may come here."""
        return any(self.takes.both())


def node_use(node: Node, settings: KubernetesSettings) -> NodeUse:
    """What the node has. Raises ValueError for an amount that is none."""
    try:
        allocatable = parse_quantity(node.status.allocatable.get(settings.resource, "0"))
    except ValueError as error:
        raise ValueError(f"node {node.metadata.name}: {error}") from error
    return NodeUse(node.metadata.name, allocatable, settings.pools.map(lambda pods: takes(node, pods)))


def takes(node: Node, pods: PoolPods) -> bool:
    """Whether the scheduler would put a new pod here, if there is room."""
    ready = condition(node.status.conditions, "Ready")
    is_up = ready is not None and ready.status == "True" and node.metadata.deletion_timestamp is None
    if not is_up or node.spec.unschedulable:
        return False
    if not pods.node_selector.items() <= node.metadata.labels.items():
        return False
    return all(tolerated(taint, pods.tolerations) for taint in node.spec.taints)


def tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Whether the taint keeps no pod away that has these."""
    return taint.effect not in KEEPS_AWAY or any(_matches(taint, each) for each in tolerations)


def _matches(taint: Taint, toleration: Toleration) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value

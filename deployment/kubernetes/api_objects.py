"""Kubernetes API objects, reduced to the fields that a budget needs."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MOST = Decimal(2**63 - 1)  # Kubernetes clamps quantities to this, too

_FORM = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,4}))?")
_DECIMAL = {
    name: Decimal(10) ** power for name, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}
_BINARY = {f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)}
_FACTORS = _DECIMAL | _BINARY


def parse_quantity(text: str) -> Decimal:
    """Parse a resource quantity. Raises ValueError for an invalid or negative one."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix, exponent = match.groups()
    factor = _FACTORS[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return min(Decimal(number) * factor, MOST)


Item = TypeVar("Item")


class ApiObject(BaseModel):
    """JSON object of the API, which omits empty fields."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel)


class Metadata(ApiObject):
    """Metadata of an object."""

    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None  # set once deletion was requested


class Condition(ApiObject):
    """Condition of an object; its status is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Taint(ApiObject):
    """Taint of a node, which repels pods that do not tolerate it."""

    key: str
    value: str = ""
    effect: str


class NodeSpec(ApiObject):
    """Desired state of a node."""

    unschedulable: bool = False  # cordoned
    taints: tuple[Taint, ...] = ()


class NodeStatus(ApiObject):
    """Observed state of a node."""

    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class Node(ApiObject):
    """Node of the cluster."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Resources(ApiObject):
    """Resource requests of a container, or of a pod as a whole."""

    requests: dict[str, str] = {}


class Container(ApiObject):
    """Container of a pod."""

    resources: Resources = Resources()
    restart_policy: str = ""  # "Always" for an init container: a sidecar


class PodSpec(ApiObject):
    """Desired state of a pod."""

    node_name: str = ""  # empty until it is scheduled
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()  # of the whole pod; overrides the sum of its containers
    overhead: dict[str, str] = {}


class Waiting(ApiObject):
    """State of a container that has not started yet."""

    reason: str = ""
    message: str = ""


class Terminated(ApiObject):
    """State of a container that has ended."""

    reason: str = ""
    exit_code: int = 0


class ContainerState(ApiObject):
    """State of a container; running if neither is set."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiObject):
    """Observed state of a container."""

    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0


class PodStatus(ApiObject):
    """Observed state of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""  # node on which other pods are being preempted for it
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiObject):
    """Pod: containers that run on one node."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PageMetadata(ApiObject):
    """Metadata of a list."""

    continuation: str = Field(default="", alias="continue")  # token of the next page; empty: last page


class Page(ApiObject, Generic[Item]):
    """Page of a list."""

    metadata: PageMetadata = PageMetadata()
    items: tuple[Item, ...] | None = None


def condition(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((each for each in conditions if each.type == type_), None)

"""The parts of the API server's objects that a budget is made from; everything else in them is passed over."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MOST = Decimal(2**63 - 1)  # larger ones mean this, to Kubernetes too

_FORM = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,4}))?")
_DECIMAL = {
    name: Decimal(10) ** power for name, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}
_BINARY = {f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)}
_FACTORS = _DECIMAL | _BINARY


def parse_quantity(text: str) -> Decimal:
    """The amount of a resource. Raises ValueError if the text is none; no resource has a negative one."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, suffix, exponent = match.groups()
    factor = _FACTORS[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return min(Decimal(number) * factor, MOST)


Item = TypeVar("Item")


class ApiObject(BaseModel):
    """A JSON object of the API; what is empty is left out there."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel)


class Metadata(ApiObject):
    """Of any object."""

    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None  # its end was asked for


class Condition(ApiObject):
    """One thing that is true of an object, or not, or not known."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Taint(ApiObject):
    """Keeps pods away from a node unless they tolerate it."""

    key: str
    value: str = ""
    effect: str


class NodeSpec(ApiObject):
    """What is wanted of a node."""

    unschedulable: bool = False  # cordoned
    taints: tuple[Taint, ...] = ()


class NodeStatus(ApiObject):
    """What a node has."""

    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class Node(ApiObject):
    """A machine of the cluster."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Resources(ApiObject):
    """What a container, or a pod as a whole, asks for."""

    requests: dict[str, str] = {}


class Container(ApiObject):
    """As in a pod's template."""

    resources: Resources = Resources()
    restart_policy: str = ""  # "Always" of an init container: it runs beside the others


class PodSpec(ApiObject):
    """What is wanted of a pod."""

    node_name: str = ""  # empty until it has its place
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()  # of the pod as a whole, in place of what its containers add up to
    overhead: dict[str, str] = {}


class Waiting(ApiObject):
    """A container that does not run, and may yet."""

    reason: str = ""
    message: str = ""


class Terminated(ApiObject):
    """A container's end."""

    reason: str = ""
    exit_code: int = 0


class ContainerState(ApiObject):
    """One of these, or it runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiObject):
    """What has become of a container."""

    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0


class PodStatus(ApiObject):
    """What has become of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""  # where others are being ended for it
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiObject):
    """Containers that run on one node."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PageMetadata(ApiObject):
    """Of a list."""

    continuation: str = Field(default="", alias="continue")  # where the next page begins; empty: there is none


class Page(ApiObject, Generic[Item]):
    """A part of a list."""

    metadata: PageMetadata = PageMetadata()
    items: tuple[Item, ...] | None = None


def condition(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """The one of that type."""
    return next((each for each in conditions if each.type == type_), None)

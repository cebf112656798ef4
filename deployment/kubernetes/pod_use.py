"""Resource use of one pod."""

from dataclasses import dataclass
from decimal import Decimal

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.api_objects import Container, Pod, PodSpec, parse_quantity
from baton.deployment.kubernetes.settings import KubernetesSettings
from baton.deployment.kubernetes.unready_pod import UnreadyPod

ENDED = ("Succeeded", "Failed")  # phases in which a pod has released its resources


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod that has not ended."""

    node: str | None  # None: not scheduled yet
    amount: Decimal  # requested amount of the resource
    is_of: ByPool[bool]  # whether it belongs to the pool; to both if they have the same labels
    unready: UnreadyPod | None = None  # only for Baton's pods

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to either pool."""
        return any(self.is_of.both())


def pod_use(pod: Pod, settings: KubernetesSettings, namespace: str) -> PodUse | None:
    """Return the pod's use; None if it has ended, or is not Baton's and requests nothing. Raises ValueError."""
    if pod.status.phase in ENDED:
        return None
    labels = pod.metadata.labels.items() if pod.metadata.namespace == namespace else ()
    is_of = settings.pools.map(lambda pods: pods.labels.items() <= set(labels))
    try:
        amount = requested(pod.spec, settings.resource)
    except ValueError as error:
        raise ValueError(f"pod {pod.metadata.namespace}/{pod.metadata.name}: {error}") from error
    is_ours = any(is_of.both())
    if not (amount or is_ours):
        return None
    # A node that preempts other pods for this one is as good as assigned.
    node = pod.spec.node_name or pod.status.nominated_node_name or None
    return PodUse(node, amount, is_of, UnreadyPod.of(pod) if is_ours else None)


def requested(spec: PodSpec, resource: str) -> Decimal:
    """Return the request that the scheduler counts for a pod.

    Containers run together, so they add up. Init containers run earlier, one after the other, except sidecars
    (restartPolicy Always), which keep running and add to the later init containers and to the containers.
    """
    together = sum((_request(each, resource) for each in spec.containers), Decimal(0))
    kept, most_before = Decimal(0), Decimal(0)
    for container in spec.init_containers:
        own = _request(container, resource)
        most_before = max(most_before, kept + own)
        if container.restart_policy == "Always":
            kept += own
    total = max(together + kept, most_before)
    if resource in spec.resources.requests:
        total = parse_quantity(spec.resources.requests[resource])
    return total + parse_quantity(spec.overhead.get(resource, "0"))


def _request(container: Container, resource: str) -> Decimal:
    return parse_quantity(container.resources.requests.get(resource, "0"))

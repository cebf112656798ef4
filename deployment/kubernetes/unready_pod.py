"""A pod of ours that does not run, and why."""

from dataclasses import dataclass
from datetime import datetime

from baton.deployment.kubernetes.api_objects import ContainerStatus, Pod, condition

ON_ITS_WAY = ("", "Pending", "PodInitializing", "ContainerCreating")  # reasons of what only needs some time


@dataclass(frozen=True, slots=True)
class UnreadyPod:
    """What Kubernetes says of a pod that waits."""

    name: str
    node: str | None  # None: it has no place yet
    since: datetime | None
    reason: str  # Unschedulable, ImagePullBackOff, CrashLoopBackOff, ...
    message: str

    @classmethod
    def of(cls, pod: Pod) -> "UnreadyPod | None":
        """None if all of it runs, or if its end was asked for."""
        if pod.metadata.deletion_timestamp is not None:
            return None
        waiting = _waiting(pod)
        if waiting is not None and waiting.reason not in ON_ITS_WAY:
            return waiting
        if pod.status.phase not in ("Pending", "Unknown"):
            return None
        return _unscheduled(pod) or waiting or _of(pod, pod.status.reason or pod.status.phase, pod.status.message)

    @property
    def is_on_its_way(self) -> bool:
        """Whether nothing is known to be in its way."""
        return self.reason in ON_ITS_WAY

    def line(self, now: datetime) -> str:
        """For people."""
        where = f" on {self.node}" if self.node is not None else ""
        since = f" for {max((now - self.since).total_seconds(), 0):.0f} s" if self.since is not None else ""
        said = f": {self.message}" if self.message else ""
        return f"{self.name} does not run{where}{since}: {self.reason}{said}"


def _unscheduled(pod: Pod) -> UnreadyPod | None:
    """The scheduler's own words."""
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return None
    return _of(pod, scheduled.reason or "Unschedulable", scheduled.message)


def _waiting(pod: Pod) -> UnreadyPod | None:
    """The first container that waits for something other than its turn, or else for that."""
    statuses = [
        (status, status.state.waiting)
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        if status.state.waiting is not None
    ]
    if not statuses:
        return None
    status, waiting = min(statuses, key=lambda each: each[1].reason in ON_ITS_WAY)
    said = [waiting.message] if waiting.message else []
    return _of(pod, waiting.reason or "ContainerCreating", "; ".join(said + _crashes(status)))


def _crashes(status: ContainerStatus) -> list[str]:
    """How often the container has ended, and how the last time."""
    ended = status.last_state.terminated
    if ended is None:
        return []
    return [f"{status.name} ended {status.restart_count} times, last {ended.reason or 'with'} {ended.exit_code}"]


def _of(pod: Pod, reason: str, message: str) -> UnreadyPod:
    since = pod.metadata.creation_timestamp
    ready = condition(pod.status.conditions, "Ready")
    if pod.status.phase == "Running" and ready is not None and ready.status != "True":
        since = ready.last_transition_time or since
    return UnreadyPod(pod.metadata.name, pod.spec.node_name or None, since, reason, message)

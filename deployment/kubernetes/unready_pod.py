"""Pod that does not run, with the reason."""

from dataclasses import dataclass
from datetime import datetime

from baton.deployment.kubernetes.api_objects import ContainerStatus, Pod, condition

STARTING_REASONS = ("", "Pending", "PodInitializing", "ContainerCreating")  # reasons that pass with time


@dataclass(frozen=True, slots=True)
class UnreadyPod:
    """Kubernetes' reason why a pod waits."""

    name: str
    node: str | None  # None: not scheduled yet
    since: datetime | None
    reason: str  # Unschedulable, ImagePullBackOff, CrashLoopBackOff, ...
    message: str

    @classmethod
    def of(cls, pod: Pod) -> "UnreadyPod | None":
        """Return the reason why a pod waits; None if all of it runs, or if its deletion was requested."""
        if pod.metadata.deletion_timestamp is not None:
            return None
        waiting = _waiting(pod)
        if waiting is not None and waiting.reason not in STARTING_REASONS:
            return waiting
        if pod.status.phase not in ("Pending", "Unknown"):
            return None
        return _unscheduled(pod) or waiting or _of(pod, pod.status.reason or pod.status.phase, pod.status.message)

    @property
    def is_starting(self) -> bool:
        """Whether it is starting normally."""
        return self.reason in STARTING_REASONS

    def line(self, now: datetime) -> str:
        """Return one line for the log."""
        where = f" on {self.node}" if self.node is not None else ""
        since = f" for {max((now - self.since).total_seconds(), 0):.0f} s" if self.since is not None else ""
        message = f": {self.message}" if self.message else ""
        return f"{self.name} does not run{where}{since}: {self.reason}{message}"


def _unscheduled(pod: Pod) -> UnreadyPod | None:
    """Return the scheduler's reason, if the pod is not scheduled."""
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return None
    return _of(pod, scheduled.reason or "Unschedulable", scheduled.message)


def _waiting(pod: Pod) -> UnreadyPod | None:
    """Return the first container that waits because of an error, or else the first that waits."""
    statuses = [
        (status, status.state.waiting)
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        if status.state.waiting is not None
    ]
    if not statuses:
        return None
    status, waiting = min(statuses, key=lambda each: each[1].reason in STARTING_REASONS)
    messages = [waiting.message] if waiting.message else []
    return _of(pod, waiting.reason or "ContainerCreating", "; ".join(messages + _crashes(status)))


def _crashes(status: ContainerStatus) -> list[str]:
    """Describe how often the container has ended, and its last exit."""
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

"""A replica as seen by the router."""

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from baton.deployment.autoscaling.snapshot import ReplicaLatency
from baton.protos.worker_pb2 import KVPool, WorkerDescription
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.load import LoadEstimate
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.replica import Replica

FINGERPRINT = "twin"
MAX_SAMPLES = 4096  # more than a replica ends in a window


class LatencyWindow:
    """The latencies of requests that ended in the last window."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)  # time of the end, and latency

    def note(self, now_s: float, seconds: float) -> None:
        """Add one request's time."""
        self._samples.append((now_s, seconds))

    def latency(self, ready_for_s: float, since_s: float, quantile: float) -> ReplicaLatency:
        """Summarise the samples since `since_s`, and drop older ones."""
        while self._samples and self._samples[0][0] < since_s:
            self._samples.popleft()
        times = sorted(seconds for _, seconds in self._samples)
        quantile_s = times[ceil(quantile * len(times)) - 1] if times else 0.0
        return ReplicaLatency(ready_for_s, len(times), quantile_s)


@dataclass(slots=True, eq=False)
class Worker:
    """One replica in one role, and the router's estimate of its load."""

    description: WorkerDescription
    role: WorkerRole
    replica: Replica
    wanted_s: float  # when its start began
    estimate: LoadEstimate = field(default_factory=LoadEstimate)
    latencies: LatencyWindow = field(default_factory=LatencyWindow)  # TTFT of a prefill worker, otherwise TPOT
    taken: list[int] = field(default_factory=list)  # numbers of commands that no report has included yet
    ready_s: float | None = None  # None while it starts
    draining_s: float | None = None  # time from which it takes no new requests
    former: "Worker | None" = None  # the same replica in its former role, until it has left that
    is_noted: bool = False  # a report is scheduled
    reported_s: float = float("-inf")

    @property
    def worker_id(self) -> str:
        """The worker's id and incarnation; ids of a twin's workers are never reused."""
        return self.description.worker_id


def describe(worker_id: str, machine: Machine) -> WorkerDescription:
    """Return the description of a worker on this machine."""
    spec = machine.spec
    return WorkerDescription(
        worker_id=worker_id,
        incarnation=worker_id,
        address=worker_id,
        fingerprint=FINGERPRINT,
        block_size=spec.block_size,
        num_blocks=spec.num_blocks,
        max_model_len=machine.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        pool=KVPool(incarnation=worker_id, fingerprint=FINGERPRINT, block_bytes=spec.block_bytes),
    )

"""Replicas that take time to start and to drain."""

from collections import deque
from dataclasses import dataclass, field

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.settings import PoolLimits
from baton.deployment.autoscaling.snapshot import PoolSnapshot, ReplicaLatency
from tests.unit.deployment.autoscaling_load import Machine, SimulatedRequest

WINDOW_S = 60.0


@dataclass(slots=True, eq=False)
class Replica:
    """One replica, from the moment it is wanted."""

    wanted_s: float
    ready_s: float | None = None
    draining_s: float | None = None
    free_s: float = 0.0  # prefill: when it has computed its queue
    running: list[SimulatedRequest] = field(default_factory=list)  # decode
    samples: deque[tuple[float, float]] = field(default_factory=deque)  # (time, TTFT or TPOT)

    def latency(self, now_s: float, quantile: float) -> ReplicaLatency:
        """Return the quantile of its samples in the window."""
        while self.samples and self.samples[0][0] < now_s - WINDOW_S:
            self.samples.popleft()
        values = sorted(value for _, value in self.samples)
        assert self.ready_s is not None
        worst = _percentile(values, round(100 * quantile)) if len(values) > 1 else 0.0
        return ReplicaLatency(now_s - self.ready_s, len(values) if worst else 0, worst)


def _percentile(values: list[float], percent: int) -> float:
    """Interpolate between sorted values, like `statistics.quantiles`, which computes all percentiles."""
    place, part = divmod(percent * (len(values) - 1), 100)
    return (values[place] * (100 - part) + values[min(place + 1, len(values) - 1)] * part) / 100


class Window:
    """The moments of what happened in the last seconds, kept as running sums."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()  # (time, value)
        self._sum = self._sum_squares = 0.0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, at_s: float, value: float) -> None:
        self._values.append((at_s, value))
        self._sum += value
        self._sum_squares += value * value

    def forget(self, before_s: float) -> None:
        """Drop what happened earlier."""
        while self._values and self._values[0][0] < before_s:
            _, value = self._values.popleft()
            self._sum -= value
            self._sum_squares -= value * value

    @property
    def moments(self) -> Moments:
        if not self._values:
            return Moments()
        return Moments(self._sum / len(self._values), self._sum_squares / len(self._values))


class Pool:
    """The replicas of one pool."""

    def __init__(self, limits: PoolLimits, machine: Machine, num_ready: int) -> None:
        self.limits = limits
        self.machine = machine
        self.replicas = [Replica(0.0, ready_s=0.0) for _ in range(num_ready)]

    @property
    def ready(self) -> list[Replica]:
        return [each for each in self.replicas if each.ready_s is not None and each.draining_s is None]

    @property
    def starting(self) -> list[Replica]:
        return [each for each in self.replicas if each.ready_s is None]

    @property
    def gpus(self) -> int:
        """Number of GPUs in use."""
        return len(self.replicas) * self.limits.gpus_per_replica

    def scale(self, target: int, now_s: float) -> None:
        """Start or stop replicas; those that are not ready yet are stopped first."""
        live = [each for each in self.replicas if each.draining_s is None]
        for _ in range(target - len(live)):
            self.replicas.append(Replica(now_s))
        for replica in sorted(live, key=lambda each: each.ready_s is not None)[: max(0, len(live) - target)]:
            if replica.ready_s is None:
                self.replicas.remove(replica)
            else:
                replica.draining_s = now_s

    def snapshot(self, now_s: float, quantile: float, oldest_wait_s: float) -> PoolSnapshot:
        ready = self.ready
        return PoolSnapshot(
            num_ready=len(ready),
            starting_since_s=tuple(each.wanted_s for each in self.starting),
            num_draining=len(self.replicas) - len(ready) - len(self.starting),
            start_s=self.machine.start_s,
            drain_s=self.machine.drain_s,
            oldest_wait_s=oldest_wait_s,
            latencies=tuple(each.latency(now_s, quantile) for each in ready),
        )

    def slowness(self, replica: Replica, now_s: float) -> float:
        assert replica.ready_s is not None
        return 10.0 if now_s - replica.ready_s < self.machine.cold_s else 1.0

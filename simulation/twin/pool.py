"""The replicas of one role: start, drain, removal, and change from the other role."""

from collections.abc import Callable, Iterator

from baton.deployment.autoscaling.snapshot import PoolSnapshot
from baton.router.policy.cluster import WorkerRole
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.replica import Replica
from baton.simulation.twin.router import TwinRouter
from baton.simulation.twin.worker import Worker, describe


class Pool:
    """The replicas of a role."""

    def __init__(
        self,
        role: WorkerRole,
        clock: Clock,
        machine: Machine,
        router: TwinRouter,
        start_s: float,
        note_change: Callable[[], None],
    ) -> None:
        """Create an empty pool.

        start_s: from a replica's start to ready; note_change: called when the number of replicas has changed.
        """
        self._role = role
        self._clock = clock
        self._machine = machine
        self._router = router
        self._start_s = start_s
        self._note_change = note_change
        self._workers: list[Worker] = []  # in the order of their start
        self._num_made = 0
        self._awaited: list[Worker] = []  # workers whose replica still has requests of its former role
        self._flip_s = 0.0
        self._drains_s: list[float] = []  # durations of ended drains
        self._num_gone_preemptions = self._num_gone_tokens = 0  # of removed replicas

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __len__(self) -> int:
        """Return the number of replicas that occupy GPUs, including starting and draining ones."""
        return len(self._workers)

    @property
    def ready(self) -> list[Worker]:
        """Replicas that take requests."""
        return [each for each in self._workers if each.ready_s is not None and each.draining_s is None]

    @property
    def num_live(self) -> int:
        """Number of replicas that are ready, starting or changing to this role."""
        return sum(each.draining_s is None for each in self._workers)

    @property
    def num_preemptions(self) -> int:
        """Preemptions of all replicas, including removed ones."""
        return self._num_gone_preemptions + sum(each.replica.core.scheduler.num_preemptions for each in self._workers)

    @property
    def num_generated(self) -> int:
        """Output tokens of all replicas, including removed ones."""
        return self._num_gone_tokens + sum(each.replica.core.num_generated_tokens for each in self._workers)

    def begin(self, count: int) -> None:
        """Add `count` replicas that are ready at once."""
        for _ in range(count):
            self._make_ready(self._make())

    def scale(self, target: int) -> None:
        """Start replicas, or drain some: first those that are not ready yet, then those with the fewest requests."""
        live = [each for each in self._workers if each.draining_s is None]
        for _ in range(target - len(live)):
            self._clock.after(self._start_s, self._make_ready, self._make())
        own = [each for each in live if each.former is None]
        surplus = sorted(own, key=lambda each: (each.ready_s is not None, each.estimate.num_requests))
        for worker in surplus[: max(0, len(live) - target)]:
            worker.draining_s = self._clock.now_s
            self._router.retire(worker)
        self.collect()

    def adopt(self, other: "Pool", count: int, flip_s: float) -> None:
        """Have ready replicas of another pool change to this role: they drain, and are ready after `flip_s`.

        Those with the fewest requests are chosen.
        """
        self._flip_s = flip_s
        for former in sorted(other.ready, key=lambda each: each.estimate.num_requests)[:count]:
            other._leave(former)
            worker = self._make(former.replica)
            worker.former = former
            self._awaited.append(worker)
        self.collect()

    def _leave(self, worker: Worker) -> None:
        """Let a worker drain whose replica belongs to another pool from now on."""
        worker.draining_s = self._clock.now_s
        self._router.retire(worker)
        self._workers.remove(worker)

    def collect(self) -> None:
        """Remove the replicas that have drained, and let those go on that change to this role."""
        for worker in list(self._awaited):
            assert worker.former is not None
            if _is_done(worker.former):
                self._awaited.remove(worker)
                self._clock.after(self._flip_s, self._make_ready, worker)
        drained = [each for each in self._workers if each.draining_s is not None and _is_done(each)]
        for worker in drained:
            assert worker.draining_s is not None
            if worker.ready_s is not None:
                self._drains_s.append(self._clock.now_s - worker.draining_s)
            self._num_gone_preemptions += worker.replica.core.scheduler.num_preemptions
            self._num_gone_tokens += worker.replica.core.num_generated_tokens
            self._workers.remove(worker)
        if drained:
            self._note_change()

    def snapshot(self, window_s: float, quantile: float) -> PoolSnapshot:
        """Return the pool's figures for the autoscaler.

        They have no waiting times of the router's queue: in the twin all requests wait at workers.
        """
        now_s, ready = self._clock.now_s, self.ready
        new = [each for each in self._workers if each.ready_s is None and each.draining_s is None]
        starting = [each.wanted_s for each in new if each.former is None]
        return PoolSnapshot(
            num_ready=len(ready),
            starting_since_s=tuple(starting),
            num_draining=len(self._workers) - len(ready) - len(new),
            num_flipping_in=len(new) - len(starting),
            start_s=self._start_s,
            drain_s=sum(self._drains_s) / len(self._drains_s) if self._drains_s else 0.0,
            latencies=tuple(
                each.latencies.latency(now_s - (each.ready_s or 0.0), now_s - window_s, quantile) for each in ready
            ),
        )

    def _make(self, replica: Replica | None = None) -> Worker:
        """Make a worker with this replica, or a new one."""
        worker_id = f"{self._role.value}-{self._num_made}"
        self._num_made += 1
        worker = Worker(
            description=describe(worker_id, self._machine),
            role=self._role,
            replica=replica or Replica(self._clock, self._machine.spec),
            wanted_s=self._clock.now_s,
        )
        self._workers.append(worker)
        self._note_change()
        return worker

    def _make_ready(self, worker: Worker) -> None:
        if worker.draining_s is None:  # otherwise it was drained while it started
            worker.ready_s, worker.former = self._clock.now_s, None
            worker.replica.report_to(lambda: self._router.reports.note(worker))
            self._router.admit(worker)
            self._note_change()


def _is_done(worker: Worker) -> bool:
    """Return whether a draining worker has no request left and none is on its way (prefill workers refuse those)."""
    return worker.replica.is_idle and (worker.role is WorkerRole.PREFILL or worker.estimate.num_own_requests == 0)

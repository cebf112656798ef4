"""The replicas of one role: they start, serve, drain and go."""

from collections.abc import Callable, Iterator

from baton.deployment.autoscaling.snapshot import PoolSnapshot
from baton.router.policy.cluster import WorkerRole
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.replica import Replica
from baton.simulation.twin.router import TwinRouter
from baton.simulation.twin.worker import Worker, describe


class Pool:
    """Owns the replicas of a role, and what their GPUs cost."""

    def __init__(
        self,
        role: WorkerRole,
        clock: Clock,
        machine: Machine,
        router: TwinRouter,
        start_s: float,
        note_change: Callable[[], None],
    ) -> None:
        """A replica is ready `start_s` after it was asked for. `note_change`: another number of them is there."""
        self._role = role
        self._clock = clock
        self._machine = machine
        self._router = router
        self._start_s = start_s
        self._note_change = note_change
        self._workers: list[Worker] = []  # in the order in which they were asked for
        self._num_made = 0
        self._drains_s: list[float] = []  # how long they took
        self._num_gone_preemptions = self._num_gone_tokens = 0  # of replicas that are gone

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __len__(self) -> int:
        """All that have their GPUs: starting and draining ones too."""
        return len(self._workers)

    @property
    def ready(self) -> list[Worker]:
        """Those that take requests."""
        return [each for each in self._workers if each.ready_s is not None and each.draining_s is None]

    @property
    def num_live(self) -> int:
        """Those that serve, or will."""
        return sum(each.draining_s is None for each in self._workers)

    @property
    def num_preemptions(self) -> int:
        """Of all replicas that there were."""
        return self._num_gone_preemptions + sum(each.replica.core.scheduler.num_preemptions for each in self._workers)

    @property
    def num_generated(self) -> int:
        """Tokens of output, of all replicas that there were."""
        return self._num_gone_tokens + sum(each.replica.core.num_generated_tokens for each in self._workers)

    def begin(self, count: int) -> None:
        """So many are there from the start."""
        for _ in range(count):
            self._make_ready(self._make())

    def scale(self, target: int) -> None:
        """Starts replicas, or lets go of some: those that are not ready yet, then those with least to do."""
        live = [each for each in self._workers if each.draining_s is None]
        for _ in range(target - len(live)):
            self._clock.after(self._start_s, self._make_ready, self._make())
        surplus = sorted(live, key=lambda each: (each.ready_s is not None, each.estimate.num_requests))
        for worker in surplus[: max(0, len(live) - target)]:
            worker.draining_s = self._clock.now_s
            self._router.retire(worker)
        self.collect()

    def collect(self) -> None:
        """Lets go of those that have drained."""
        gone = [each for each in self._workers if each.draining_s is not None and _is_done(each)]
        for worker in gone:
            assert worker.draining_s is not None
            if worker.ready_s is not None:
                self._drains_s.append(self._clock.now_s - worker.draining_s)
            self._num_gone_preemptions += worker.replica.core.scheduler.num_preemptions
            self._num_gone_tokens += worker.replica.core.num_generated_tokens
            self._workers.remove(worker)
        if gone:
            self._note_change()

    def snapshot(self, window_s: float, quantile: float) -> PoolSnapshot:
        """As the autoscaler is told of it: without how long anybody has waited, which routers know of their own queues
        alone; here everybody waits at workers.
        """
        now_s, ready = self._clock.now_s, self.ready
        starting = [each.wanted_s for each in self._workers if each.ready_s is None and each.draining_s is None]
        return PoolSnapshot(
            num_ready=len(ready),
            starting_since_s=tuple(starting),
            num_draining=len(self._workers) - len(ready) - len(starting),
            start_s=self._start_s,
            drain_s=sum(self._drains_s) / len(self._drains_s) if self._drains_s else 0.0,
            latencies=tuple(
                each.latencies.latency(now_s - (each.ready_s or 0.0), now_s - window_s, quantile) for each in ready
            ),
        )

    def _make(self) -> Worker:
        worker_id = f"{self._role.value}-{self._num_made}"
        self._num_made += 1
        worker = Worker(
            description=describe(worker_id, self._machine),
            role=self._role,
            replica=Replica(self._clock, self._machine.spec, lambda: self._router.reports.note(worker)),
            wanted_s=self._clock.now_s,
        )
        self._workers.append(worker)
        self._note_change()
        return worker

    def _make_ready(self, worker: Worker) -> None:
        if worker.draining_s is None:  # else it was given up before it came
            worker.ready_s = self._clock.now_s
            self._router.admit(worker)
            self._note_change()


def _is_done(worker: Worker) -> bool:
    """Whether nothing of any request is there, nor on its way there; a prefill worker that drains takes no more."""
    return worker.replica.is_idle and (worker.role is WorkerRole.PREFILL or worker.estimate.num_own_requests == 0)

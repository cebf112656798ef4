"""The router of the twin: the policy, the index and the load estimates of the real one, fed by the replicas."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from baton.router.index.prefix_index import PrefixIndex
from baton.router.policy.cluster import ClusterSnapshot, Plan, RoutedRequest, WorkerSnapshot
from baton.router.policy.estimates import OutputLength, ReuseShare
from baton.router.policy.policy import Policy
from baton.router.workers.load import LoadShare
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.worker import Worker

REPORT_INTERVAL_S = 0.05  # as a router asks for by default


@dataclass(frozen=True, slots=True)
class Route:
    """The workers of a request, and its share of their load."""

    number: int  # the command's number
    plan: Plan
    routed: RoutedRequest
    share: LoadShare
    decode: Worker
    prefill: Worker | None  # None: the decode worker computes the prompt
    source: Worker | None  # from which the prefill worker pulls a cached prefix


class Reports:
    """Workers with a report to send. Due reports are read only when the router needs them."""

    def __init__(self, clock: Clock, interval_s: float, take: Callable[[Worker], None]) -> None:
        """`take` reads a worker's report; a worker reports at most once per interval."""
        self._clock = clock
        self._interval_s = interval_s
        self._take = take
        self._due: list[tuple[float, int, Worker]] = []
        self._num_noted = 0

    def note(self, worker: Worker) -> None:
        """Schedule a report after a change, at the earliest one interval after the last report."""
        if not worker.is_noted:
            worker.is_noted = True
            self._num_noted += 1
            due_s = max(self._clock.now_s, worker.reported_s + self._interval_s)
            heappush(self._due, (due_s, self._num_noted, worker))

    def flush(self) -> None:
        """Take all reports that are due."""
        while self._due and self._due[0][0] <= self._clock.now_s:
            worker = heappop(self._due)[2]
            worker.is_noted = False
            worker.reported_s = self._clock.now_s
            self._take(worker)


class TwinRouter:
    """A router's view of the workers that take requests: their cached prefixes and their load."""

    def __init__(self, clock: Clock, policy: Policy, block_size: int, seed: int) -> None:
        self.reports = Reports(clock, REPORT_INTERVAL_S, self._take_report)
        self._clock = clock
        self._policy = policy
        self._block_size = block_size
        self._seed = seed
        self._index = PrefixIndex()
        self._reuse = ReuseShare()
        self._answers = OutputLength()
        self._workers: dict[str, Worker] = {}  # by id; those that take requests
        self._snapshots: dict[str, WorkerSnapshot] = {}  # of `_workers`
        self._stale: dict[str, None] = {}  # workers whose snapshot is out of date
        self._num_commands = 0
        self._free_at_s = 0.0  # end of the router's work for earlier requests

    def admit(self, worker: Worker) -> None:
        """Add a worker that takes requests from now on."""
        self._workers[worker.worker_id] = worker
        self._snapshots[worker.worker_id] = worker.estimate.snapshot(worker.description, worker.role)
        self.reports.note(worker)

    def retire(self, worker: Worker) -> None:
        """Remove a worker: it finishes its requests and gets no more."""
        self._workers.pop(worker.worker_id, None)
        self._snapshots.pop(worker.worker_id, None)
        self._stale.pop(worker.worker_id, None)
        self._index.reset(worker.worker_id)

    def route(self, request: TraceRequest) -> Route:
        """Choose a request's workers, and add it to their load. Raises NoWorker."""
        self.reports.flush()
        cached = {
            worker_id: num_blocks * self._block_size
            for worker_id, num_blocks in self._index.match(request.hashes).items()
        }
        self._reuse.note(request.num_prompt_tokens, max(cached.values(), default=0))
        routed = RoutedRequest(
            request.num_prompt_tokens,
            cached,
            request.num_prompt_tokens + request.num_output_tokens,
            reuse_share=self._reuse.value,
            mean_output_tokens=self._answers.mean,
            typical_output_tokens=self._answers.typical,
        )
        plan = self._policy(routed, self._cluster())
        self._num_commands += 1
        decode = self._workers[plan.decode.incarnation]
        prefill = self._workers[plan.prefill.incarnation] if plan.prefill is not None else None
        source = self._workers[plan.prefix_source.incarnation] if plan.prefix_source is not None else None
        share = LoadShare(self._num_commands, decode.estimate, prefill.estimate if prefill is not None else None)
        route = Route(self._num_commands, plan, routed, share, decode, prefill, source)
        share.add(plan, routed)
        self.has_changed(route)
        return route

    def queue_s(self, request_s: float) -> float:
        """Return how long a request that arrives now waits for the router, if the router needs `request_s` for each."""
        begins_s = max(self._clock.now_s, self._free_at_s)
        self._free_at_s = begins_s + request_s
        return begins_s - self._clock.now_s

    def has_answered(self, num_tokens: int) -> None:
        """Record the output length of a request that has ended."""
        self._answers.note(num_tokens)

    def has_changed(self, route: Route) -> None:
        """Mark the snapshots of a request's workers as out of date, since its share of their load has changed."""
        for worker in (route.decode, route.prefill):
            if worker is not None and worker.worker_id in self._workers:
                self._stale[worker.worker_id] = None

    def _cluster(self) -> ClusterSnapshot:
        for worker_id in self._stale:
            worker = self._workers[worker_id]
            self._snapshots[worker_id] = worker.estimate.snapshot(worker.description, worker.role)
        self._stale.clear()
        return ClusterSnapshot(tuple(self._snapshots.values()), self._num_commands, self._seed)

    def _take_report(self, worker: Worker) -> None:
        """Apply a worker's load and cache report."""
        taken, worker.taken = worker.taken, []
        worker.estimate.report(worker.replica.load(), taken, self._clock.now_s)
        if worker.worker_id not in self._workers:
            return
        changes = worker.replica.take_cache_changes()
        if changes.stored or changes.removed:
            self._index.update(worker.worker_id, b"".join(changes.removed), b"".join(changes.stored))
        self._stale[worker.worker_id] = None

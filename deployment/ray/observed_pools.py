"""State of both pools, merged from all routers' reports. Pure functions from reports to the planner's snapshot."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.snapshot import (
    DecodeSnapshot,
    PoolSnapshot,
    PoolsSnapshot,
    PrefillSnapshot,
    ReplicaLatency,
    Traffic,
)
from baton.deployment.ray.observed_traffic import amount, merged_traffic
from baton.deployment.ray.pool_progress import PoolProgress
from baton.membership.registry.router_report import RouterReport, WorkerReport, quantile_of_bins
from baton.router.policy.cost_model import CostModel
from baton.settings.names import Role

# Latency from a router through the decode worker to a prefill worker, and of the first token back, as in the router's
# cost model. The first token does not wait for the KV blocks.
HANDOVER_S = CostModel().hop_s


@dataclass(frozen=True, slots=True)
class ObservedPools:
    """Traffic and workers of both pools, each worker counted once."""

    traffic: Traffic
    workers: ByPool[tuple[WorkerReport, ...]]  # colocated workers count as decode workers
    num_waiting: int  # in the routers' queues
    oldest_wait_s: float  # in the routers' queues

    @classmethod
    def of(cls, reports: Sequence[RouterReport]) -> "ObservedPools":
        """Merge the reports, which must all be of one model."""
        workers = merged_workers(reports)
        return cls(
            traffic=merged_traffic([each.traffic for each in reports]),
            workers=_by_pool(workers),
            num_waiting=sum(each.traffic.num_waiting for each in reports),
            oldest_wait_s=amount(max((each.traffic.oldest_wait_s for each in reports), default=0.0)),
        )

    def of_application(self, application: str) -> "ObservedPools":
        """Return the state with the workers of one application alone.

        In an upgrade the workers of another cluster take a part of the traffic, and soon end. The application's own
        pools are planned for all of it, and latencies that were measured with a part are no measure of the model.
        """
        workers = [*self.workers.prefill, *self.workers.decode]
        if not any(each.application for each in workers):  # routers of an earlier version do not report it
            return self
        own = [each for each in workers if each.application == application]
        if any(each.application != application and not each.draining for each in workers):
            own = [replace(each, latency={}) for each in own]
        return replace(self, workers=_by_pool(own))

    def size_elsewhere(self, application: str) -> ByPool[int]:
        """Return the number of ready workers of each pool in that other application which has the most of them."""

        def most(pool: tuple[WorkerReport, ...]) -> int:
            others = Counter(each.application for each in pool if each.application not in ("", application))
            return max(others.values(), default=0)

        return self.ready.map(most)

    @property
    def ready(self) -> ByPool[tuple[WorkerReport, ...]]:
        """Workers that accept new requests."""
        return self.workers.map(lambda pool: tuple(each for each in pool if not each.draining))

    @property
    def offset(self) -> int:
        """The prefill deployment's ready workers that decode, minus the decode deployment's that prefill."""
        return sum(offset_of(each.initial_role, each.role) for pool in self.ready.both() for each in pool)

    def snapshot(self, progress: ByPool[PoolProgress], quantile: float, now_s: float) -> PoolsSnapshot:
        """Return the planner's snapshot. `quantile` is the SLO's; `now_s` is on the same clock as `progress`."""
        num_for_decode = self._num_waiting_for_decode()
        num_for_prefill = max(0, self.num_waiting - num_for_decode)
        waits_s = ByPool(self.oldest_wait_s if num_for_prefill else 0.0, self.oldest_wait_s if num_for_decode else 0.0)
        pools = self.workers.zip(progress.zip(waits_s)).map(
            lambda each: _pool(each[0], each[1][0], each[1][1], quantile)
        )
        return PoolsSnapshot(
            now_s=now_s,
            traffic=self.traffic,
            prefill=self._prefill(pools.prefill, num_for_prefill),
            decode=self._decode(pools.decode, num_for_decode),
        )

    def _prefill(self, pool: PoolSnapshot, num_waiting: int) -> PrefillSnapshot:
        """Return the prefill snapshot. Prompts that wait in routers are assumed to have the mean length."""
        workers = self.workers.prefill
        queued = sum(each.num_queued_tokens for each in self.ready.prefill)
        remote_tokens = self.traffic.remote_tokens or self.traffic.uncached_tokens
        return PrefillSnapshot(
            pool=pool,
            tokens_per_s=_typical(workers, lambda each: each.prefill_tokens_per_s),
            step_s=_typical(workers, lambda each: each.decode_step_s),
            max_step_tokens=_typical_count(workers, lambda each: each.max_num_batched_tokens, 2048),
            handover_s=HANDOVER_S,
            queued_tokens=amount(queued + num_waiting * self.traffic.remote_share * remote_tokens.mean),
        )

    def _decode(self, pool: PoolSnapshot, num_waiting: int) -> DecodeSnapshot:
        workers = self.workers.decode
        num_running = sum(map(_num_in_batch, workers))
        num_beyond_batch = sum(each.num_running for each in workers) - num_running
        num_receiving = min(sum(each.num_waiting for each in workers), self._num_at_prefill())
        used = sum(max(0, each.num_blocks - each.num_free_blocks) * each.block_size for each in workers)
        num_holding = num_running + num_beyond_batch + num_receiving
        measured = [each for each in workers if each.decode_step_s > 0]
        return DecodeSnapshot(
            pool=pool,
            step_s=_typical(measured, lambda each: each.decode_step_s),
            sequence_s=median([each.decode_sequence_s for each in measured]) if measured else 0.0,
            max_num_seqs=_typical_count(workers, lambda each: each.max_num_seqs, 256),
            kv_tokens=_typical_count(workers, lambda each: each.num_blocks * each.block_size, 0),
            # Sequences that wait with a prefilled prompt, or for its KV, hold blocks too.
            kv_used_tokens=round(amount(used * num_running / max(1, num_holding))),
            num_running=num_running,
            num_waiting=num_waiting,
        )

    def _num_waiting_for_decode(self) -> int:
        """Return the number of waiting sequences that more decode capacity would help.

        Sequences that wait at a decode worker may only be waiting for their prompt; at most as many as prefill workers
        have in progress. With its prompt, a sequence waits while the batch is full. Requests in a router's queue wait
        for prefill as long as decode workers have free slots.
        """
        workers = self.workers.decode
        num_receiving = self._num_at_prefill()
        num_at_workers = max(0, sum(each.num_waiting for each in workers) - num_receiving)
        num_beyond_batch = sum(each.num_running - _num_in_batch(each) for each in workers)
        ready = self.ready.decode
        num_slots = sum(max(0, each.max_num_seqs - each.num_running) for each in ready) - num_receiving
        context = self.traffic.prompt_tokens.mean + self.traffic.output_tokens.mean
        free_tokens = sum(each.num_free_blocks * each.block_size for each in ready)
        num_free = min(num_slots, int(free_tokens / context)) if context > 0 else num_slots
        return max(0, self.num_waiting + num_at_workers + num_beyond_batch - max(0, num_free))

    def _num_at_prefill(self) -> int:
        """Return the number of prompts running or queued at prefill workers: an upper bound of pending handovers."""
        return sum(each.num_running + each.num_waiting for each in self.workers.prefill)


def offset_of(initial_role: Role | None, role: Role) -> int:
    """Return the part of a worker in `ObservedPools.offset`; None: the role of its deployment is unknown."""
    return int((initial_role, role) == ("prefill", "decode")) - int((initial_role, role) == ("decode", "prefill"))


def _by_pool(workers: Iterable[WorkerReport]) -> ByPool[tuple[WorkerReport, ...]]:
    found = tuple(workers)
    return ByPool(
        tuple(each for each in found if each.role == "prefill"),
        tuple(each for each in found if each.role != "prefill"),
    )


def merged_workers(reports: Iterable[RouterReport]) -> list[WorkerReport]:
    """Merge workers by incarnation: the latest report wins, and the latencies of all routers are added."""
    workers: dict[str, WorkerReport] = {}  # by incarnation
    for report in sorted(reports, key=lambda each: each.time_s):
        for worker in report.workers:
            known = workers.get(worker.incarnation)
            if known is not None:
                worker = replace(
                    worker,
                    draining=worker.draining or known.draining,
                    ready_for_s=max(worker.ready_for_s, known.ready_for_s),
                    latency=dict(Counter(worker.latency) + Counter(known.latency)),
                )
            workers[worker.incarnation] = worker
    return list(workers.values())


def _pool(
    workers: Sequence[WorkerReport], progress: PoolProgress, oldest_wait_s: float, quantile: float
) -> PoolSnapshot:
    """Return a pool's snapshot. Replicas that Serve is about to stop count as draining, those that leave do not."""
    ready = [each for each in workers if not each.draining]
    return PoolSnapshot(
        num_ready=len(ready) - progress.num_stopping,
        starting_since_s=progress.starting_since_s,
        num_draining=len(workers) - len(ready) - progress.num_flipping_out + progress.num_stopping,
        num_flipping_in=progress.num_flipping_in,
        start_s=progress.start_s,
        oldest_wait_s=oldest_wait_s,
        latencies=tuple(
            ReplicaLatency(each.ready_for_s, sum(each.latency.values()), quantile_of_bins(each.latency, quantile))
            for each in ready
            if each.latency
        ),
    )


def _num_in_batch(worker: WorkerReport) -> int:
    """Return the number of sequences in the decode batch.

    `num_running` may exceed `max_num_seqs`, because handed-over sequences are limited by free blocks alone.
    """
    return min(worker.num_running, worker.max_num_seqs or worker.num_running)


def _typical(workers: Iterable[WorkerReport], attribute: Callable[[WorkerReport], float]) -> float:
    """Return the median of the positive values; 0 if there are none."""
    known = [value for each in workers if (value := attribute(each)) > 0]
    return median(known) if known else 0.0


def _typical_count(workers: Iterable[WorkerReport], attribute: Callable[[WorkerReport], int], otherwise: int) -> int:
    known = [value for each in workers if (value := attribute(each)) > 0]
    return median_low(known) if known else otherwise

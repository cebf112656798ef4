"""This router's report of its traffic and workers, for the autoscaler."""

import time

from baton.membership.registry.router_report import (
    MAX_ADDRESS_CHARS,
    MAX_COUNT,
    MAX_TOKENS,
    MIN_RATE,
    MIN_STEP_S,
    RouterReport,
    TrafficReport,
    WorkerReport,
    encode_report,
    known,
)
from baton.router.admission.admission import Admission
from baton.router.dispatch.first_worker import FirstWorker
from baton.router.metrics.metrics import RouterMetrics
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.settings.names import MAX_NAME_CHARS, Role

ROLE_NAMES: dict[WorkerRole, Role] = {
    WorkerRole.PREFILL: "prefill",
    WorkerRole.DECODE: "decode",
    WorkerRole.BOTH: "both",
}


class PoolsReporter:
    """Makes the reports. They contain aggregates only, nothing about single requests."""

    def __init__(
        self,
        router_id: str,
        pool: WorkerPool,
        admission: Admission,
        metrics: RouterMetrics,
        first_worker: FirstWorker,
    ) -> None:
        self._router_id = router_id
        self._pool = pool
        self._admission = admission
        self._metrics = metrics
        self._first_worker = first_worker

    async def run(self) -> None:
        """Keep a current report in the registry until cancelled."""
        await self._pool.registry.reports.keep(self._router_id, self.text)

    def text(self) -> str:
        """Return the current report as JSON."""
        return encode_report(self.report())

    def report(self) -> RouterReport:
        """Return the current report."""
        reports = (self._worker(each) for each in self._pool.connections)
        return RouterReport(
            router_id=self._router_id,
            model=self._metrics.model_name,
            time_s=time.time(),
            traffic=self._traffic(),
            workers=tuple(each for each in reports if each is not None),
        )

    def _traffic(self) -> TrafficReport:
        arrivals, lengths = self._admission.arrivals, self._metrics.traffic.lengths
        return TrafficReport(
            window_s=arrivals.window_s,
            num_requests=arrivals.num_completions,
            gaps_s=arrivals.gaps_s,
            prompt_tokens=lengths.prompt,
            uncached_tokens=lengths.uncached,
            remote_tokens=lengths.remote,
            output_tokens=lengths.output,
            asked_tokens=lengths.asked,
            num_generated_tokens=lengths.num_generated,
            num_waiting=self._admission.num_waiting + self._first_worker.num_waiting,
            oldest_wait_s=self._admission.oldest_wait_s,
            recent=arrivals.recent,
        )

    def _worker(self, connection: WorkerConnection) -> WorkerReport | None:
        """Return a worker's part of the report; None if it is unreachable or has not reported yet.

        The numbers come from the worker, and those out of the report's bounds would make the whole report invalid:
        counts are clamped, and rates and times become unknown.
        """
        found, load = connection.description, connection.load.reported
        if found is None or connection.state is ConnectionState.CONNECTING:
            return None
        if not 0 < len(found.incarnation) <= MAX_NAME_CHARS:
            return None
        return WorkerReport(
            worker_id=found.worker_id,
            incarnation=found.incarnation,
            role=ROLE_NAMES[ROLES[found.role]],
            application=found.application if len(found.application) <= MAX_NAME_CHARS else "",
            initial_role=ROLE_NAMES[ROLES.get(found.initial_role, ROLES[found.role])],
            address=connection.address if len(connection.address) <= MAX_ADDRESS_CHARS else "",
            draining=connection.state.is_draining,
            ready_for_s=time.monotonic() - connection.reached_s,
            num_running=min(load.num_running, MAX_COUNT),
            num_waiting=min(load.num_waiting, MAX_COUNT),
            num_queued_tokens=min(load.num_queued_tokens, MAX_TOKENS),
            num_blocks=min(load.num_blocks, MAX_COUNT),
            num_free_blocks=min(load.num_free_blocks, MAX_COUNT),
            block_size=found.block_size,
            max_num_seqs=min(found.max_num_seqs, MAX_COUNT),
            max_num_batched_tokens=min(found.max_num_batched_tokens, MAX_TOKENS),
            prefill_tokens_per_s=known(load.prefill_tokens_per_s, MIN_RATE),
            decode_step_s=known(load.decode_step_s, MIN_STEP_S),
            decode_sequence_s=known(load.decode_sequence_s, MIN_STEP_S),
            latency=self._metrics.traffic.latency(found.incarnation),
        )

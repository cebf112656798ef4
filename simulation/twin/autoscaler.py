"""The real autoscaler for the twin's pools: one decision per second."""

from collections.abc import Callable, Iterable
from statistics import median

from baton.deployment.autoscaling.decision import Decision
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, PoolsSnapshot, PrefillSnapshot
from baton.deployment.autoscaling.state import ScalingState
from baton.router.policy.cluster import WorkerRole
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.pool import Pool
from baton.simulation.twin.traffic_window import WINDOW_S, TrafficWindow
from baton.simulation.twin.worker import Worker

INTERVAL_S = 1.0


class Autoscaler:
    """The state of `plan_pools`, and the execution of its decisions."""

    def __init__(
        self,
        clock: Clock,
        settings: ScalingSettings,
        machine: Machine,
        prefill: Pool,
        decode: Pool,
        traffic: TrafficWindow,
        is_over: Callable[[], bool],
    ) -> None:
        """Decide until `is_over` returns True: every request has ended."""
        settings.check()
        self.decisions: list[tuple[float, Decision]] = []  # with times; only those that changed a size
        self._clock = clock
        self._settings = settings
        self._machine = machine
        self._prefill = prefill
        self._decode = decode
        self._traffic = traffic
        self._is_over = is_over
        self._state: ScalingState | None = None

    def decide(self) -> None:
        """Make a decision, and schedule the next one."""
        if self._is_over():
            return
        self._prefill.collect()
        self._decode.collect()
        decision, self._state = plan_pools(self.snapshot(), self._state, self._settings)
        targets = decision.prefill.target, decision.decode.target
        if targets != (self._prefill.num_live, self._decode.num_live):
            self.decisions.append((self._clock.now_s, decision))
        if self._settings.flip_s is not None:
            self._prefill.adopt(self._decode, decision.flips.to_prefill, self._settings.flip_s)
            self._decode.adopt(self._prefill, decision.flips.to_decode, self._settings.flip_s)
        self._prefill.scale(targets[0])
        self._decode.scale(targets[1])
        self._clock.after(INTERVAL_S, self.decide)

    def snapshot(self) -> PoolsSnapshot:
        """Return the figures that routers and workers would report."""
        spec, quantile = self._machine.spec, self._settings.slo.quantile
        workers = [each.former or each for each in (*self._prefill, *self._decode)]
        decodes = [each for each in workers if each.role is WorkerRole.DECODE]
        prefills = [each for each in workers if each.role is not WorkerRole.DECODE]
        self._traffic.note_generated(self._clock.now_s, self._prefill.num_generated + self._decode.num_generated)
        num_held = sum(each.replica.num_held_tokens for each in decodes)
        num_running = sum(min(each.replica.num_running, spec.max_num_seqs) for each in decodes)
        # Their KV is received, but the batch is full.
        num_outside_batch = sum(each.replica.num_running for each in decodes) - num_running
        return PoolsSnapshot(
            now_s=self._clock.now_s,
            traffic=self._traffic.traffic(self._clock.now_s),
            prefill=PrefillSnapshot(
                pool=self._prefill.snapshot(WINDOW_S, quantile),
                tokens_per_s=_tokens_per_s(prefills) or spec.prefill_tokens_per_s,
                step_s=spec.step_s,
                max_step_tokens=spec.max_num_batched_tokens,
                handover_s=self._machine.overhead_s + self._machine.handover_s,
                queued_tokens=sum(each.replica.core.scheduler.backlog.num_queued_tokens for each in prefills),
            ),
            decode=DecodeSnapshot(
                pool=self._decode.snapshot(WINDOW_S, quantile),
                step_s=spec.step_s + spec.sequence_s,
                sequence_s=spec.sequence_s,
                max_num_seqs=spec.max_num_seqs,
                kv_tokens=(spec.num_blocks - 1) * spec.block_size,
                kv_used_tokens=round(num_held * num_running / max(1, num_running + num_outside_batch)),
                num_running=num_running,
                num_waiting=num_outside_batch + sum(each.replica.num_unadmitted for each in decodes),
            ),
        )


def _tokens_per_s(workers: Iterable[Worker]) -> float:
    """Return the median of the known prefill rates; 0 if none is known."""
    known = [rate for each in workers if (rate := each.replica.load().prefill_tokens_per_s)]
    return median(known) if known else 0.0

"""A simulated worker's load as its messages tell it."""

from baton.protos.worker_pb2 import WorkerLoad
from baton.simulation.engine.core import EngineCore
from baton.worker.reporting import WorkerCounters


class LoadReport:
    """Owns nothing: reads an engine and its worker's counters."""

    def __init__(self, core: EngineCore, counters: WorkerCounters) -> None:
        self._core = core
        self._counters = counters

    def take(self) -> WorkerLoad:
        """What there is to do now, and what was done since the start."""
        core, counters = self._core, self._counters
        load, done, rates = core.load(), core.counters, core.step_times.rates()
        return WorkerLoad(
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_prefills=counters.num_prefills,
            num_queued_tokens=load.num_queued_tokens,
            num_free_blocks=load.num_free_blocks,
            num_blocks=load.num_blocks,
            step_s=done.recent_step_s,
            num_generated_tokens=done.generated_tokens,
            num_prefilled_tokens=done.prefilled_tokens,
            num_preemptions=load.num_preemptions,
            handovers=counters.handovers,
            handover_bytes=counters.handover_bytes,
            handover_failures=counters.handover_failures,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            decode_step_s=rates.decode_step_s,
            decode_sequence_s=rates.decode_sequence_s,
            read_bytes_per_s=counters.read_bytes_per_s,
        )

"""The load report of a simulated worker."""

from baton.protos.worker_pb2 import WorkerLoad
from baton.simulation.engine.core import EngineCore
from baton.worker.reporting import WorkerCounters


def load_report(core: EngineCore, counters: WorkerCounters) -> WorkerLoad:
    """Return what a worker has to do now, and what it has done since its start."""
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

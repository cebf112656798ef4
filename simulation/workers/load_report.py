"""A simulated worker's load as its messages tell it."""

from dataclasses import dataclass

from baton.protos.worker_pb2 import WorkerLoad
from baton.simulation.engine.core import EngineCore
from baton.worker.reporting import WorkerCounters

STEP_TIME_WEIGHT = 0.1  # of the newest step in the running mean


@dataclass(slots=True)
class EngineCounters:
    """Since the start; seconds are real ones."""

    busy_s: float = 0.0  # of steps
    steps: int = 0
    recent_step_s: float = 0.0  # running mean
    requests: int = 0  # taken
    prefilled_tokens: int = 0  # prompt tokens computed
    generated_tokens: int = 0
    received_tokens: int = 0  # whose KV came from other engines
    max_lag_s: float = 0.0  # latest end of a step behind its time: beyond a few ms this process is too slow

    def add_step(self, step_s: float, num_prompt_tokens: int) -> None:
        """A step begins."""
        self.steps += 1
        self.busy_s += step_s
        self.recent_step_s += STEP_TIME_WEIGHT * (step_s - self.recent_step_s)
        self.prefilled_tokens += num_prompt_tokens


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine has to do now, and what its requests found cached since the start."""

    num_running: int
    num_waiting: int
    num_queued_tokens: int
    num_free_blocks: int
    num_blocks: int  # that requests can hold
    num_preemptions: int
    num_cached_tokens: int  # of prompts, found in the cache when they were admitted first
    num_looked_up_tokens: int  # of those prompts


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

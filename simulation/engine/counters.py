"""Counters of a simulated engine."""

from dataclasses import dataclass

STEP_TIME_WEIGHT = 0.1  # weight of the newest step in the running mean


@dataclass(slots=True)
class EngineCounters:
    """Counters since the start; all times in real seconds."""

    busy_s: float = 0.0  # sum of all steps' times
    steps: int = 0
    recent_step_s: float = 0.0  # running mean
    requests: int = 0  # accepted
    prefilled_tokens: int = 0  # prompt tokens computed
    generated_tokens: int = 0
    received_tokens: int = 0  # tokens with KV from other engines
    max_lag_s: float = 0.0  # largest delay of a step's end; beyond a few ms this process is too slow

    def add_steps(self, step_s: float, num_steps: int, num_prompt_tokens: int) -> None:
        """Count equal steps that have ended."""
        self.steps += num_steps
        self.busy_s += num_steps * step_s
        self.recent_step_s += (1 - (1 - STEP_TIME_WEIGHT) ** num_steps) * (step_s - self.recent_step_s)
        self.prefilled_tokens += num_prompt_tokens

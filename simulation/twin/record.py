"""The record of one request."""

from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO


@dataclass(slots=True)
class Record:
    """Lengths, times at the client from the trace's start, and the outcome."""

    due_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    num_received_tokens: int = 0  # output tokens
    num_cached_tokens: int = 0  # prompt tokens cached on the worker that computed the prompt
    is_remote: bool = False  # a prefill worker computed the prompt for the decode worker
    refusal: str | None = None  # reason, if it was refused
    num_ends: int = 0  # 1 after its end

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 if there is only one."""
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else 0.0

    def is_good(self, slo: SLO) -> bool:
        """Return whether the request was answered within the SLO."""
        return self.refusal is None and self.ttft_s <= slo.ttft_s and self.tpot_s <= slo.tpot_s

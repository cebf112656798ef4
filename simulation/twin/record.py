"""What became of one request."""

from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO


@dataclass(slots=True)
class Record:
    """Times from the trace's start, as the client sees them."""

    due_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    num_received_tokens: int = 0  # of output
    num_cached_tokens: int = 0  # of the prompt, where it was computed
    is_remote: bool = False  # the prompt was computed by another worker than the one that decoded
    refusal: str | None = None  # why it has no answer
    num_ends: int = 0  # 1, once it has one

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 if there is only one."""
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else 0.0

    def is_good(self, slo: SLO) -> bool:
        """Whether the answer came whole and within both times."""
        return self.refusal is None and self.ttft_s <= slo.ttft_s and self.tpot_s <= slo.tpot_s

"""Token budget of a step."""

from dataclasses import dataclass

from baton.engine.request import Request

MAX_PROMPT_LOGITS = 512  # prompt tokens with logprobs in a step: each needs a logits row over the whole vocabulary


@dataclass(slots=True)
class RemainingBudget:
    """Remaining token budget of a step."""

    num_tokens: int
    num_prompt_logits: int = MAX_PROMPT_LOGITS

    def limit_for(self, request: Request) -> int:
        """Return the most tokens of this request that still fit into the step."""
        reports_prompt = request.sampling.prompt_logprobs is not None
        return min(self.num_tokens, self.num_prompt_logits) if reports_prompt else self.num_tokens

    def take(self, request: Request, num_tokens: int) -> int:
        """Take up to `num_tokens` tokens of a request out of the budget; returns how many."""
        count = min(num_tokens, self.limit_for(request))
        self.num_tokens -= count
        if request.sampling.prompt_logprobs is not None:
            self.num_prompt_logits -= count
        return count


STEPS_TO_RECOVER = 256  # from zero to the maximum
STEPS_TO_FORGET = 1 << 16  # until the maximum is tried again after nearly nothing fitted


class StepBudget:
    """Token budget that halves when a step runs out of memory and then grows with every step that fits.

    It grows up to just below the size that failed. That bound rises slowly too, since the shortage may have been
    temporary.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bound = float(most)
        self.num_tokens = most

    def shrink(self, num_tokens: int) -> bool:
        """Shrink the budget after a step of `num_tokens` tokens ran out of memory; False if no smaller step exists."""
        self._bound = max(num_tokens * 0.9, 1.0)
        self.num_tokens = max(num_tokens // 2, 1)
        return num_tokens > 1

    def recover(self) -> None:
        """Grow the budget after a step that fitted into memory."""
        self._bound = min(float(self._most), self._bound + self._most / STEPS_TO_FORGET)
        self.num_tokens = min(int(self._bound), self.num_tokens + max(1, self._most // STEPS_TO_RECOVER))

"""How many tokens a step may have."""

from dataclasses import dataclass

from baton.engine.request import Request

MAX_PROMPT_LOGITS = 512  # of tokens whose log-probabilities are asked for: each has a row over the whole vocabulary


@dataclass(slots=True)
class StepRoom:
    """Tokens that can be added to a step."""

    num_tokens: int
    num_prompt_logits: int = MAX_PROMPT_LOGITS

    def of(self, request: Request) -> int:
        """How many of them may be this request's."""
        reports_prompt = request.sampling.prompt_logprobs is not None
        return min(self.num_tokens, self.num_prompt_logits) if reports_prompt else self.num_tokens

    def take(self, request: Request, num_tokens: int) -> int:
        """So many tokens of a request, or as many as there is room for."""
        count = min(num_tokens, self.of(request))
        self.num_tokens -= count
        if request.sampling.prompt_logprobs is not None:
            self.num_prompt_logits -= count
        return count


STEPS_TO_RECOVER = 256  # from nothing to the most
STEPS_TO_FORGET = 1 << 16  # until the most is tried again, where nearly nothing did fit


class StepBudget:
    """Half of a step that did not fit into memory, then more with every one that does, up to just below that size.

    Memory may have been short for a while only: that bound rises too, slowly.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bound = float(most)
        self.num_tokens = most

    def shrink(self, num_tokens: int) -> bool:
        """A step of so many tokens did not fit; False if there is no smaller one."""
        self._bound = max(num_tokens * 0.9, 1.0)
        self.num_tokens = max(num_tokens // 2, 1)
        return num_tokens > 1

    def recover(self) -> None:
        """A step did fit."""
        self._bound = min(float(self._most), self._bound + self._most / STEPS_TO_FORGET)
        self.num_tokens = min(int(self._bound), self.num_tokens + max(1, self._most // STEPS_TO_RECOVER))

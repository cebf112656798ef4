"""What a step may still have."""

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

"""When a request ends."""

from dataclasses import dataclass

from baton.engine.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class FinishRule:
    """What ends a request besides its own options."""

    eos_token_ids: frozenset[int]
    max_model_len: int

    def reason(self, request: Request, token_id: int) -> FinishReason | None:
        """Why the request ends with `token_id` behind its tokens; None if it goes on."""
        sampling = request.sampling
        num_output_tokens = request.num_output_tokens + 1
        is_eos = token_id in self.eos_token_ids and not sampling.ignore_eos
        if num_output_tokens >= sampling.min_tokens and (is_eos or token_id in sampling.stop_token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.ends_by_length(request) else None

    def ends_by_length(self, request: Request) -> bool:
        """Whether the request ends with the next token, whichever it is."""
        is_last = request.num_output_tokens + 1 >= request.sampling.max_tokens
        return is_last or request.num_tokens + 1 >= self.max_model_len

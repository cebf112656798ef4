"""When a request ends."""

from dataclasses import dataclass

from engine.request import FinishReason, Request


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
        if num_output_tokens >= sampling.max_tokens or request.num_tokens + 1 >= self.max_model_len:
            return FinishReason.LENGTH
        return None

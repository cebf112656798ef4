"""Requests whose next step can be launched before the previous one's tokens are known."""

from baton.engine.request import Request
from baton.engine.sampling.params import GREEDY_BELOW


def can_look_ahead(request: Request) -> bool:
    """Return whether the device can sample a token, with nothing else to report, before the host knows the previous.

    Excludes top-k and top-p, for which the host waits for intermediate results.
    """
    sampling = request.sampling
    is_edited = bool(sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty or sampling.grammar)
    return (
        not (is_edited or sampling.repetition_penalty != 1 or request.num_output_tokens < sampling.min_tokens)
        and (sampling.temperature < GREEDY_BELOW or (sampling.top_k == 0 and sampling.top_p == 1))
        and sampling.logprobs is sampling.prompt_logprobs is None
        and not request.keep_blocks  # the contents of kept blocks are reported to a peer
    )

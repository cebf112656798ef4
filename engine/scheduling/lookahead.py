"""Requests whose next step can be launched before the previous one's tokens are known."""

from collections.abc import Sequence

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestStatus
from baton.engine.sampling.params import GREEDY_BELOW
from baton.engine.scheduling.schedule import ScheduledRequest


def can_look_ahead(request: Request) -> bool:
    """Return whether the device can sample a token, with nothing else to report, before the host knows the previous.

    Excludes top-k and top-p, for which the host waits for intermediate results, and adapters, which steps copy to the
    device.
    """
    sampling = request.sampling
    is_edited = bool(sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty or sampling.grammar)
    return (
        not (is_edited or sampling.repetition_penalty != 1 or request.num_output_tokens < sampling.min_tokens)
        and (sampling.temperature < GREEDY_BELOW or (sampling.top_k == 0 and sampling.top_p == 1))
        and sampling.logprobs is sampling.prompt_logprobs is None
        and not request.adapter_number
        and not request.keep_blocks  # the contents of kept blocks are reported to a peer
    )


def following(
    in_flight: Sequence[ScheduledRequest], finish_rule: FinishRule, blocks: BlockManager
) -> list[ScheduledRequest]:
    """Return one more token of each running request of a step, with blocks, unless it ends by length.

    Returns nothing if that cannot be done for one of them.
    """
    items = []
    for row, item in enumerate(in_flight):
        request = item.request
        if request.status is not RequestStatus.RUNNING or finish_rule.ends_by_length(request):
            continue
        if not (can_look_ahead(request) and blocks.grow(request, num_unknown=1)):
            return []
        items.append(ScheduledRequest.after(item, row))
    return items

"""Rows of a step's logits that are sampled: one for each request, and one behind each of its drafted tokens."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.scheduling.schedule import ScheduledRequest

Drafted = Mapping[int, Sequence[int]]  # by row: tokens that precede its token and that the request does not have yet

NO_DRAFTS: Drafted = MappingProxyType({})


def sampled_requests(scheduled: Sequence[ScheduledRequest]) -> tuple[list[Request], Drafted]:
    """Return the request of each row, and the drafted tokens in front of it."""
    requests: list[Request] = []
    drafted: dict[int, Sequence[int]] = {}
    for item in scheduled:
        requests += [item.request] * item.samples
        for count in range(1, len(item.drafts) + 1):
            drafted[len(requests)] = item.drafts[:count]
            requests.append(item.request)
    return requests, drafted


def num_accepted(drafts: Sequence[int], sampled: Sequence[SampledToken], first: int, late_rows: Collection[int]) -> int:
    """Return how many of a request's drafts equal the tokens sampled in their places.

    first: the request's first row in `sampled`. late_rows: rows without the mask of their grammar, which do not count.
    """
    count = 0
    while count < len(drafts) and drafts[count] == sampled[first + count].token_id:
        if first + count + 1 in late_rows:
            break
        count += 1
    return count

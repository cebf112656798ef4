"""How many drafted tokens a step should verify: as many as make its tokens per second the highest."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

MARGIN = 1.05  # least gain in tokens per second; smaller ones are within the error of the estimates


@dataclass(frozen=True, slots=True)
class StepCost:
    """Estimated time of a step of decodes."""

    plain_s: float  # without drafts; 0: not known yet
    drafting_s: float  # time added by the first draft
    draft_s: float  # time added by each drafted token


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that a step may verify, whole or the first tokens of it."""

    num_tokens: int
    acceptance: float  # probability that a token is right if those before it are
    least: int = 0  # tokens that are verified at any price, to measure the acceptance


def draft_lengths(candidates: Sequence[Candidate], num_sequences: int, cost: StepCost, most: int) -> list[int]:
    """Return how many tokens of each candidate to verify, `most` in all.

    num_sequences: sequences that decode in the step, each of which gets one token without drafts, and tokens of other
    ranks that the same step computes. A token at place `k` of a draft is accepted with probability `acceptance ** k`.
    Tokens are taken in the order of that probability while each raises the expected tokens per second of the whole
    batch; none are, if all together do not raise it by MARGIN.
    """
    least, left = [], most
    for each in candidates:
        least.append(min(each.least, each.num_tokens, left))
        left -= least[-1]
    if cost.plain_s <= 0:
        return least
    lengths = list(least)
    tokens, step_s = float(num_sequences), cost.plain_s + cost.drafting_s + (most - left) * cost.draft_s
    gains = []
    for place, each in enumerate(candidates):
        tokens += sum(each.acceptance**count for count in range(1, least[place] + 1))
        gains.append((-_gain(each, least[place]), place))
    heapify(gains)
    for _ in range(left if gains else 0):
        gain, place = -gains[0][0], gains[0][1]
        if gain * step_s <= tokens * cost.draft_s:
            break
        tokens, step_s = tokens + gain, step_s + cost.draft_s
        lengths[place] += 1
        heapreplace(gains, (-_gain(candidates[place], lengths[place]), place))
    is_worth_it = tokens * cost.plain_s >= MARGIN * num_sequences * step_s
    return lengths if is_worth_it else least


def _gain(candidate: Candidate, length: int) -> float:
    """Return the expected tokens that one more adds to the first `length` tokens of a draft."""
    return candidate.acceptance ** (length + 1) if length < candidate.num_tokens else 0.0

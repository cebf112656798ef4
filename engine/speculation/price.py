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
    pass_s: float = 0.0  # time added by each place in the longest draft: a pass of the drafter for all requests


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that a step may verify, whole or the first tokens of it."""

    num_tokens: int
    acceptance: float  # probability that a token is right if those before it are
    least: int = 0  # tokens that are verified at any price, to measure the acceptance


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens of each candidate to verify, and the expected rate of the step."""

    counts: Sequence[int]
    tokens_per_s: float


def draft_lengths(candidates: Sequence[Candidate], num_sequences: int, cost: StepCost, most: int) -> Sequence[int]:
    """Return how many tokens of each candidate to verify, `most` in all.

    num_sequences: sequences that decode in the step, each of which gets one token without drafts, and tokens of other
    ranks that the same step computes. A token at place `k` of a draft is accepted with probability `acceptance ** k`.
    None are taken, apart from the least ones, if all together do not raise the expected tokens per second by MARGIN.
    """
    least, left = [], most
    for each in candidates:
        least.append(min(each.least, each.num_tokens, left))
        left -= least[-1]
    if cost.plain_s <= 0 or not candidates:
        return least
    deepest = max(each.num_tokens for each in candidates)
    best = _up_to(deepest if not cost.pass_s else 1, candidates, least, num_sequences, cost, most)
    for depth in range(2, deepest + 1 if cost.pass_s else 0):
        deeper = _up_to(depth, candidates, least, num_sequences, cost, most)
        if deeper.tokens_per_s <= best.tokens_per_s:  # gains fall with the depth, so later ones are worse, too
            break
        best = deeper
    return best.counts if best.tokens_per_s * cost.plain_s >= MARGIN * num_sequences else least


def _up_to(
    depth: int, candidates: Sequence[Candidate], least: Sequence[int], num_sequences: int, cost: StepCost, most: int
) -> Lengths:
    """Return the best lengths of drafts of up to `depth` tokens, for a drafter that makes so many passes.

    Tokens are taken in the order of their probability while each raises the expected tokens per second of the batch.
    """
    counts, num_drafted = list(least), sum(least)
    tokens = float(num_sequences)
    step_s = cost.plain_s + cost.drafting_s + depth * cost.pass_s + num_drafted * cost.draft_s
    gains = []
    for place, each in enumerate(candidates):
        tokens += sum(each.acceptance**count for count in range(1, least[place] + 1))
        gains.append((-_gain(each, least[place], depth), place))
    heapify(gains)
    for _ in range(most - num_drafted):
        gain, place = -gains[0][0], gains[0][1]
        if gain * step_s <= tokens * cost.draft_s:
            break
        tokens, step_s = tokens + gain, step_s + cost.draft_s
        counts[place] += 1
        heapreplace(gains, (-_gain(candidates[place], counts[place], depth), place))
    return Lengths(counts, tokens / step_s)


def _gain(candidate: Candidate, length: int, depth: int) -> float:
    """Return the expected tokens that one more adds to the first `length` tokens of a draft."""
    return candidate.acceptance ** (length + 1) if length < min(candidate.num_tokens, depth) else 0.0

"""Comparison of two engines' outputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu.engine_session import Answer
from benchmarks.gpu.stage import Record

TOLERANCE = 0.1  # of a logprob; also the margin below which rounding may change the token


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two outputs for one prompt, up to the first differing token."""

    is_same: bool  # all tokens
    is_excused: bool  # or the first differing token was as probable as the reference's
    largest: float  # difference of the logprobs


def difference(ours: Answer, reference: Answer) -> Difference:
    """Compare token by token up to the first difference, after which all may differ."""
    largest = 0.0
    for place, (token, expected) in enumerate(zip(ours.token_ids, reference.token_ids, strict=True)):
        here, there = ours.top[place] if ours.top else {}, reference.top[place]
        largest = max([largest, *(abs(here[each] - there[each]) for each in here.keys() & there.keys())])
        if token != expected:
            margin = there[expected] - there.get(token, float("-inf"))
            return Difference(False, margin < TOLERANCE, largest)
    return Difference(True, True, largest)


def compare_answers(
    record: Record, case: str, ours: Mapping[str, Answer], reference: Mapping[str, Answer], tolerance: float = TOLERANCE
) -> None:
    """Add a finding for all outputs. The reference has logprobs; without logprobs of ours, only tokens are compared."""
    each = [difference(ours[name], reference[name]) for name in reference]
    same, largest = sum(one.is_same for one in each), max(one.largest for one in each)
    is_right = all(one.is_excused for one in each) and largest < tolerance
    excused = sum(one.is_excused for one in each) - same
    record.find(
        case,
        is_right,
        f"{same} of {len(each)} outputs have the same tokens, {excused} differ first between equally probable tokens, "
        f"logprobs differ by up to {largest:.2g}",
    )

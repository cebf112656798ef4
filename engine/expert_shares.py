"""Who reads the experts that nobody has."""

from collections.abc import Sequence


def share_missing(slots: Sequence[Sequence[int]], num_experts: int) -> list[list[int]]:
    """The experts of each rank, given those that it has: what nobody has goes to who has the fewest, in order.

    Ranks that have the same number get neighbouring experts: at the start each rank gets one run of them.
    """
    shared = [list(held) for held in slots]
    here = {expert for held in slots for expert in held}
    missing = [expert for expert in range(num_experts) if expert not in here]
    if not missing:
        return shared
    extra = [0] * len(shared)
    for _ in missing:
        rank = min(range(len(shared)), key=lambda each: (len(shared[each]) + extra[each], each))
        extra[rank] += 1
    start = 0
    for held, count in zip(shared, extra, strict=True):
        held += missing[start : start + count]
        start += count
    return shared

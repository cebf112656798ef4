"""Who reads the experts that nobody has, or that are too many elsewhere, whatever their loads."""

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


def is_even(slots: Sequence[Sequence[int]]) -> bool:
    """Whether no rank has much more than another: who has just come has nothing."""
    sizes = [len(held) for held in slots]
    return max(sizes) - min(sizes) <= 1


def hand_over(slots: Sequence[Sequence[int]]) -> list[list[int]]:
    """The experts of each rank once it is even: who has the most gives to who has the fewest, and reads nothing."""
    shared = [list(held) for held in slots]
    while not is_even(shared):
        giver, taker = max(shared, key=len), min(shared, key=len)
        given = next((expert for expert in reversed(giver) if expert not in taker), giver[-1])
        giver.remove(given)
        if given not in taker:  # else one replica of it is enough
            taker.append(given)
    return shared

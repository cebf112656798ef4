"""Which rank of an expert-parallel group holds which experts of one layer, in which of its slots; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """The logical expert of every slot of every rank, in one layer.

    A physical slot is rank * slots_per_rank + place. All ranks have equally many slots, every expert stands in one at
    least, and none stands twice on one rank unless a rank has more slots than there are experts.
    """

    num_experts: int
    slots: tuple[tuple[int, ...], ...]  # [rank][place]

    def __post_init__(self) -> None:
        if self.num_experts < 1:
            raise ValueError(f"a placement needs one expert at least, not {self.num_experts}")
        if not self.slots or not self.slots[0]:
            raise ValueError("a placement needs one rank at least, and one slot at each")
        for rank, experts in enumerate(self.slots):
            self._check_rank(rank, experts)
        missing = set(range(self.num_experts)).difference(*self.slots)
        if missing:
            raise ValueError(f"no rank holds expert {min(missing)}, nor {len(missing) - 1} others: each must stand")

    def _check_rank(self, rank: int, experts: tuple[int, ...]) -> None:
        if len(experts) != self.slots_per_rank:
            raise ValueError(f"rank {rank} has {len(experts)} slots, rank 0 {self.slots_per_rank}: must be equal")
        wrong = [expert for expert in experts if not 0 <= expert < self.num_experts]
        if wrong:
            raise ValueError(f"rank {rank} holds expert {wrong[0]}; experts are 0 to {self.num_experts - 1}")
        if self.slots_per_rank <= self.num_experts and len(set(experts)) < len(experts):
            twice = next(expert for expert in experts if experts.count(expert) > 1)
            raise ValueError(f"rank {rank} holds expert {twice} twice, which needs more slots a rank than experts")

    @property
    def num_ranks(self) -> int:
        """How many ranks hold experts."""
        return len(self.slots)

    @property
    def slots_per_rank(self) -> int:
        """How many experts each rank holds."""
        return len(self.slots[0])

    def as_array(self) -> IntArray:
        """The slots, [num_ranks, slots_per_rank]."""
        return np.array(self.slots, dtype=np.int64)


def num_slots_per_rank(num_experts: int, num_ranks: int, num_redundant: int) -> int:
    """Slots of each rank for all experts and so many replicas beyond them; what does not divide evenly is rounded up.

    ValueError for sizes that are none.
    """
    if num_experts < 1 or num_ranks < 1 or num_redundant < 0:
        raise ValueError(
            f"{num_experts} experts and {num_redundant} redundant ones on {num_ranks} ranks cannot be placed: "
            "there must be one expert and one rank at least, and no fewer than 0 redundant"
        )
    return -(-(num_experts + num_redundant) // num_ranks)


def contiguous(num_experts: int, num_ranks: int, num_redundant: int = 0) -> ExpertPlacement:
    """The placement while no loads are known: each rank holds experts that follow each other.

    Ranks begin at evenly spaced experts and go on around the end, so that slots beyond one for each expert hold the
    first experts of the ranks that follow, and equal loads weigh on the ranks as evenly as they can.
    """
    slots_per_rank = num_slots_per_rank(num_experts, num_ranks, num_redundant)
    starts = (rank * num_experts // num_ranks for rank in range(num_ranks))
    slots = (tuple((start + place) % num_experts for place in range(slots_per_rank)) for start in starts)
    return ExpertPlacement(num_experts, tuple(slots))


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

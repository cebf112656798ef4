"""Placement of one layer's experts in the slots of an expert-parallel group's ranks; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Logical expert of every slot of every rank, in one layer.

    The physical slot is rank * slots_per_rank + place. All ranks have equally many slots, every expert has at least one
    slot, and no rank holds an expert twice unless it has more slots than there are experts.
    """

    num_experts: int
    slots: tuple[tuple[int, ...], ...]  # [rank][place]

    def __post_init__(self) -> None:
        if self.num_experts < 1:
            raise ValueError(f"a placement needs at least one expert, not {self.num_experts}")
        if not self.slots or not self.slots[0]:
            raise ValueError("a placement needs at least one rank, and at least one slot per rank")
        for rank, experts in enumerate(self.slots):
            self._check_rank(rank, experts)
        missing = set(range(self.num_experts)).difference(*self.slots)
        if missing:
            raise ValueError(f"no rank holds expert {min(missing)} and {len(missing) - 1} others: each needs a slot")

    def _check_rank(self, rank: int, experts: tuple[int, ...]) -> None:
        if len(experts) != self.slots_per_rank:
            raise ValueError(f"rank {rank} has {len(experts)} slots, rank 0 {self.slots_per_rank}: must be equal")
        wrong = [expert for expert in experts if not 0 <= expert < self.num_experts]
        if wrong:
            raise ValueError(f"rank {rank} holds expert {wrong[0]}; experts are 0 to {self.num_experts - 1}")
        if self.slots_per_rank <= self.num_experts and len(set(experts)) < len(experts):
            twice = next(expert for expert in experts if experts.count(expert) > 1)
            raise ValueError(f"rank {rank} holds expert {twice} twice, which needs more slots per rank than experts")

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.slots)

    @property
    def slots_per_rank(self) -> int:
        """Number of slots, and so of experts, per rank."""
        return len(self.slots[0])

    def as_array(self) -> IntArray:
        """Return the expert of each slot, [num_ranks, slots_per_rank]."""
        return np.array(self.slots, dtype=np.int64)


def num_slots_per_rank(num_experts: int, num_ranks: int, num_redundant: int) -> int:
    """Return the slots per rank for all experts plus `num_redundant` replicas, rounded up.

    Raises ValueError for sizes below one, or a negative `num_redundant`.
    """
    if num_experts < 1 or num_ranks < 1 or num_redundant < 0:
        raise ValueError(
            f"{num_experts} experts and {num_redundant} redundant ones on {num_ranks} ranks cannot be placed: "
            "there must be at least one expert and one rank, and 0 or more redundant experts"
        )
    return -(-(num_experts + num_redundant) // num_ranks)


def contiguous(num_experts: int, num_ranks: int, num_redundant: int = 0) -> ExpertPlacement:
    """Return the placement used while no loads are known: each rank holds consecutive experts.

    Ranks start at evenly spaced experts and wrap around at the end. Redundant slots thus hold the first experts of the
    following ranks, and equal loads are spread as evenly as possible.
    """
    slots_per_rank = num_slots_per_rank(num_experts, num_ranks, num_redundant)
    starts = (rank * num_experts // num_ranks for rank in range(num_ranks))
    slots = (tuple((start + place) % num_experts for place in range(slots_per_rank)) for start in starts)
    return ExpertPlacement(num_experts, tuple(slots))


def share_missing(slots: Sequence[Sequence[int]], num_experts: int) -> list[list[int]]:
    """Return each rank's experts after assigning the experts that no rank holds to the ranks with the fewest.

    Ranks with equally many get consecutive experts: at startup each rank gets one contiguous range.
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
    """Return whether the ranks' numbers of experts differ by at most 1; a rank that has just joined has none."""
    sizes = [len(held) for held in slots]
    return max(sizes) - min(sizes) <= 1


def even_out(slots: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return each rank's experts after moving experts from the fullest to the emptiest rank until they are even.

    Ranks that give experts away read none.
    """
    shared = [list(held) for held in slots]
    while not is_even(shared):
        fullest, emptiest = max(shared, key=len), min(shared, key=len)
        moved = next((expert for expert in reversed(fullest) if expert not in emptiest), fullest[-1])
        fullest.remove(moved)
        if moved not in emptiest:  # otherwise one replica of it is enough
            emptiest.append(moved)
    return shared

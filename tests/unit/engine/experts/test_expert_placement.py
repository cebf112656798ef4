"""Expert placement: invalid placements, and the initial one."""

import itertools
from collections import Counter

import pytest

from baton.engine.experts.placement import ExpertPlacement, contiguous

SIZES = [(1, 1, 0), (8, 1, 0), (8, 2, 0), (10, 4, 2), (10, 4, 0), (3, 5, 0), (64, 8, 16), (5, 3, 7), (256, 64, 32)]


@pytest.mark.parametrize(
    ("num_experts", "slots", "wrong"),
    [
        (0, ((0,),), "at least one expert"),
        (1, (), "at least one rank"),
        (1, ((),), "at least one slot per rank"),
        (3, ((0, 1), (2,)), "rank 1 has 1 slots, rank 0 2"),
        (3, ((0, 1), (2, 3)), "rank 1 holds expert 3; experts are 0 to 2"),
        (3, ((0, 1), (2, -1)), "rank 1 holds expert -1"),
        (4, ((0, 1), (0, 1)), "no rank holds expert 2 and 1 others"),
        (4, ((0, 0, 1), (1, 2, 3)), "rank 0 holds expert 0 twice"),
        (3, ((0, 1, 1), (0, 1, 2)), "rank 0 holds expert 1 twice"),
    ],
)
def test_invalid_placements_are_refused(num_experts: int, slots: tuple[tuple[int, ...], ...], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        ExpertPlacement(num_experts, slots)


def test_an_expert_may_be_twice_on_a_rank_with_more_slots_than_experts() -> None:
    placement = ExpertPlacement(2, ((0, 1, 0), (1, 1, 0)))
    assert (placement.num_ranks, placement.slots_per_rank) == (2, 3)
    assert placement.as_array().tolist() == [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize(("num_experts", "num_ranks", "num_redundant"), SIZES)
def test_the_initial_placement_is_contiguous_and_as_even_as_possible(
    num_experts: int, num_ranks: int, num_redundant: int
) -> None:
    placement = contiguous(num_experts, num_ranks, num_redundant)
    assert placement.num_ranks == num_ranks
    assert placement.slots_per_rank == -(-(num_experts + num_redundant) // num_ranks)
    for experts in placement.slots:
        assert all(after == (before + 1) % num_experts for before, after in itertools.pairwise(experts))
    num_replicas = Counter(expert for experts in placement.slots for expert in experts).values()
    assert max(num_replicas) - min(num_replicas) <= 1


def test_without_spare_slots_each_rank_has_its_own_experts() -> None:
    assert contiguous(8, 4).slots == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert contiguous(10, 4).slots == ((0, 1, 2), (2, 3, 4), (5, 6, 7), (7, 8, 9))
    assert contiguous(2, 4).slots == ((0,), (0,), (1,), (1,))


@pytest.mark.parametrize(("num_experts", "num_ranks", "num_redundant"), [(0, 1, 0), (4, 0, 0), (4, 2, -1)])
def test_invalid_sizes_are_refused(num_experts: int, num_ranks: int, num_redundant: int) -> None:
    with pytest.raises(ValueError, match="cannot be placed"):
        contiguous(num_experts, num_ranks, num_redundant)

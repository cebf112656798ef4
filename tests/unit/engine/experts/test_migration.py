"""Migration between placements: experts to load, and the order of ranks and slots that needs the fewest."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from baton.engine.experts.balance import balanced, imbalance
from baton.engine.experts.migration import best_assignment, kept_in_place, with_few_moves
from baton.engine.experts.placement import ExpertPlacement, contiguous, share_missing
from baton.engine.experts.rebalance import better_slots
from tests.marks import each_value

Slots = Sequence[Sequence[int]]


def sorted_ranks(placement: ExpertPlacement, num_nodes: int) -> list[list[tuple[int, ...]]]:
    """Return the experts of each node's ranks, regardless of the order of slots, ranks and nodes."""
    ranks = [tuple(sorted(experts)) for experts in placement.slots]
    size = len(ranks) // num_nodes
    return sorted(sorted(ranks[node * size : (node + 1) * size]) for node in range(num_nodes))


def num_moves(old: ExpertPlacement, new: ExpertPlacement) -> int:
    """Return the number of slots whose expert changes."""
    return sum(
        held[slot : slot + 1] != (expert,)
        for held, wanted in zip(old.slots, new.slots, strict=True)
        for slot, expert in enumerate(wanted)
    )


def num_read(old: Slots, new: Slots) -> int:
    """Return the number of experts that ranks have to read because none of their slots has them."""
    return sum(len(set(wanted) - set(held)) for held, wanted in zip(old, new, strict=True))


@each_value
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    ("num_experts", "num_ranks", "num_redundant", "num_nodes"),
    [(16, 4, 0, 1), (16, 4, 8, 2), (64, 8, 16, 1), (64, 8, 16, 4), (64, 7, 16, 2), (4, 3, 11, 1), (8, 1, 0, 1)],
)
def test_reordering_keeps_the_placement_and_needs_no_more_moves(
    seed: int, num_experts: int, num_ranks: int, num_redundant: int, num_nodes: int
) -> None:
    rng = np.random.default_rng(seed)
    old_loads = rng.exponential(size=num_experts)
    new_loads = old_loads * rng.uniform(0.5, 2, num_experts)
    old, new = (balanced(loads, num_ranks, num_redundant, num_nodes, num_nodes) for loads in (old_loads, new_loads))
    reordered = with_few_moves(old.slots, new, num_nodes)
    kept_nodes = num_nodes if num_ranks % num_nodes == 0 else 1
    assert sorted_ranks(reordered, kept_nodes) == sorted_ranks(new, kept_nodes)
    assert imbalance(reordered.slots, new_loads) == pytest.approx(imbalance(new.slots, new_loads))
    assert num_moves(old, reordered) <= num_moves(old, new)
    assert num_moves(old, with_few_moves(old.slots, new)) <= num_moves(old, reordered)  # nodes unbound


@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("num_redundant", [0, 4])  # in the new placement; 0 gives it fewer slots than the old one
@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_ranks_needs_fewer_moves(seed: int, num_redundant: int, num_nodes: int) -> None:
    rng = np.random.default_rng(seed)
    old, new = (balanced(rng.exponential(size=8), 4, spare, num_nodes, num_nodes) for spare in (4, num_redundant))
    orders = [
        order
        for order in itertools.permutations(range(4))
        if num_nodes == 1 or (order[0] // 2 == order[1] // 2 and order[2] // 2 == order[3] // 2)
    ]
    fewest = min(num_read(old.slots, [new.slots[source] for source in order]) for order in orders)
    assert num_read(old.slots, with_few_moves(old.slots, new, num_nodes).slots) == fewest


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_a_permuted_placement_needs_no_moves(num_nodes: int) -> None:
    rng = np.random.default_rng(5)
    old = balanced(rng.random(64), 8, 16, 4, num_nodes)
    size = 8 // num_nodes
    order = [node * size + rank for node in rng.permutation(num_nodes) for rank in rng.permutation(size)]
    new = ExpertPlacement(64, tuple(tuple(rng.permutation(old.slots[rank]).tolist()) for rank in order))
    assert num_moves(old, new) > 40
    assert with_few_moves(old.slots, new, num_nodes) == old


def test_nodes_stay_together_even_if_that_needs_more_moves() -> None:
    old = ExpertPlacement(4, ((0,), (1,), (2,), (3,)))
    new = ExpertPlacement(4, ((0,), (2,), (1,), (3,)))
    assert with_few_moves(old.slots, new) == old
    assert num_moves(old, with_few_moves(old.slots, new, num_nodes=2)) == 2


def test_experts_that_stay_keep_their_slots() -> None:
    old, new = ExpertPlacement(4, ((0, 1), (2, 3))), ExpertPlacement(4, ((0, 2, 1), (2, 3, 0)))
    assert with_few_moves(old.slots, new).slots == ((0, 1, 2), (2, 3, 0))


def test_with_fewer_slots_experts_move_into_the_remaining_slots() -> None:
    old, new = contiguous(8, 4, 4), contiguous(8, 4)
    assert (old.slots[0], new.slots[0]) == ((0, 1, 2), (0, 1))
    assert num_moves(old, with_few_moves(old.slots, new)) == 0
    assert kept_in_place((4, 5, 6), (6, 5)) == (6, 5)
    assert kept_in_place((4, 5, 6), (5, 4)) == (4, 5)


def test_placements_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="the old placement has 2 ranks, the new one 3"):
        with_few_moves(contiguous(8, 2).slots, contiguous(8, 3))


@pytest.mark.parametrize("seed", range(20))
def test_ranks_with_unequal_numbers_of_experts_keep_as_many_as_possible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = share_missing([()] * 3, 8)
    assert [len(held) for held in old] == [3, 3, 2]
    new = balanced(rng.exponential(size=8), 3, 0)
    fewest = min(num_read(old, [new.slots[source] for source in order]) for order in itertools.permutations(range(3)))
    reordered = with_few_moves(old, new)
    assert sorted_ranks(reordered, 1) == sorted_ranks(new, 1)
    assert num_read(old, reordered.slots) == fewest


def test_experts_move_only_if_the_balance_improves() -> None:
    loads = np.full(8, 100)
    old = [[0, 3, 5, 6], [1, 2, 4, 7]]
    assert better_slots(old, loads, 0) == old
    loads[5] = 101  # a negligible gain
    assert better_slots(old, loads, 0) == old
    loads[[0, 3]] = 400
    assert better_slots(old, loads, 0) != old


@pytest.mark.parametrize("seed", range(60))
def test_the_assignment_is_optimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = seed % 6 + 1
    gains: NDArray[np.int64] = rng.integers(0, (2, 5, 1000)[seed % 3], (size, size))
    columns = best_assignment(gains)
    assert sorted(columns) == list(range(size))
    total = sum(int(gains[row, column]) for row, column in enumerate(columns))
    assert total == max(
        sum(int(gains[row, column]) for row, column in enumerate(order))
        for order in itertools.permutations(range(size))
    )

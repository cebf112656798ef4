"""Division of missing experts among ranks, and evening out of ranks with too many."""

import random

import pytest

from baton.engine.experts.placement import even_out, is_even, share_missing


def test_at_the_start_each_rank_gets_consecutive_experts() -> None:
    assert share_missing([[], [], []], 8) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_missing_experts_go_to_the_ranks_with_the_fewest() -> None:
    assert share_missing([[0, 1, 2], [6]], 8) == [[0, 1, 2, 3], [6, 4, 5, 7]]
    assert share_missing([[0, 1], [0]], 2) == [[0, 1], [0]]


@pytest.mark.parametrize(("sizes", "even"), [([3, 3, 2], True), ([3, 1], False), ([4, 0, 4], False), ([5], True)])
def test_shares_are_even_if_they_differ_by_at_most_one(sizes: list[int], even: bool) -> None:
    assert is_even([list(range(size)) for size in sizes]) == even


def test_the_fullest_ranks_give_experts_to_empty_ones() -> None:
    assert even_out([[0, 1, 2, 3], [4, 5, 6, 7], []]) == [[0, 1, 2], [4, 5, 6], [3, 7]]
    assert even_out([[0, 1], [2], [3]]) == [[0, 1], [2], [3]]


def test_a_replica_that_the_receiving_rank_already_has_is_dropped() -> None:
    assert even_out([[0, 1, 1, 1], [1, 0]]) == [[0, 1, 1], [1, 0]]


@pytest.mark.parametrize("seed", range(50))
def test_only_ranks_with_too_few_experts_read_and_no_expert_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    num_experts = draw.randint(1, 40)
    slots = share_missing([[] for _ in range(draw.randint(1, 6))], num_experts)
    for held in slots:  # replicas
        held += draw.sample(sorted(set(range(num_experts)) - set(held)), draw.randint(0, num_experts - len(held)))
    slots += [[] for _ in range(draw.randint(0, 3))]
    before = [list(held) for held in slots]
    shared = even_out(slots)
    assert slots == before
    assert is_even(shared)
    assert set().union(*shared) == set(range(num_experts))
    assert all(len(set(held)) == len(held) for held in shared)
    assert all(set(held) <= set(had) or set(held) > set(had) for held, had in zip(shared, slots, strict=True))
    receivers = [had for held, had in zip(shared, slots, strict=True) if len(held) > len(had)]
    assert all(len(had) < max(map(len, slots)) for had in receivers)

"""Load-balanced expert placement: valid for all loads, compared with the optimum, and fast enough."""

import itertools
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from baton.engine.experts.balance import balanced, imbalance
from baton.engine.experts.placement import ExpertPlacement, contiguous
from tests.marks import each_value, slow_except

KINDS = ("uniform", "zipf", "one hot", "zero", "few", "tokens")
SIZES = [
    (1, 1, 0),
    (1, 3, 0),
    (3, 5, 0),
    (4, 1, 0),
    (4, 1, 3),
    (4, 4, 12),
    (4, 4, 14),
    (8, 3, 0),
    (8, 8, 8),
    (9, 2, 5),
    (10, 4, 2),
    (16, 4, 40),
    (64, 8, 0),
    (64, 8, 16),
    (60, 7, 5),
    (256, 64, 32),
    (256, 320, 0),
]


def imbalance_of(placement: ExpertPlacement, loads: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the tokens of the busiest rank divided by the mean of all ranks."""
    return imbalance(placement.slots, loads)


def num_replicas(placement: ExpertPlacement) -> Counter[int]:
    """Return the number of replicas of each expert."""
    return Counter(expert for experts in placement.slots for expert in experts)


def drawn_loads(kind: str, num_experts: int, seed: int) -> NDArray[np.float64]:
    """Return loads of one kind in random order."""
    rng = np.random.default_rng(seed)
    zipf = 1 / np.arange(1, num_experts + 1)
    loads = {
        "uniform": rng.random(num_experts),
        "zipf": zipf,
        "one hot": (np.arange(num_experts) == 0) * 1000.0,
        "zero": np.zeros(num_experts),
        "few": rng.random(num_experts) * (rng.random(num_experts) < 0.2),
        "tokens": rng.multinomial(1000 * num_experts, zipf / zipf.sum()).astype(np.float64),
    }[kind]
    return rng.permutation(loads)


@each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_experts", "num_ranks", "num_redundant"), SIZES)
def test_any_loads_give_a_valid_placement_no_worse_than_the_first(
    kind: str, num_experts: int, num_ranks: int, num_redundant: int
) -> None:
    start = contiguous(num_experts, num_ranks, num_redundant)
    for seed in range(5):
        loads = drawn_loads(kind, num_experts, seed)
        placement = balanced(loads, num_ranks, num_redundant)  # validates itself
        assert (placement.num_ranks, placement.slots_per_rank) == (num_ranks, start.slots_per_rank)
        assert imbalance_of(placement, loads) <= imbalance_of(start, loads)
        assert balanced(loads.tolist(), num_ranks, num_redundant) == placement


@pytest.mark.parametrize("seed", slow_except(range(100), range(20)))
def test_zipf_loads_are_balanced(seed: int) -> None:
    for kind in ("zipf", "tokens"):
        loads = drawn_loads(kind, 64, seed)
        assert imbalance_of(balanced(loads, 8, 16), loads) < 1.005
        assert imbalance_of(contiguous(64, 8, 16), loads) > 1.1
    loads = drawn_loads("zipf", 256, seed)
    assert imbalance_of(balanced(loads, 64, 32), loads) < 1.0005


@pytest.mark.parametrize(
    ("num_experts", "num_ranks", "num_redundant", "bound"),
    [
        (4, 2, 0, 1),
        (6, 3, 0, 1),
        (8, 2, 0, 1),
        (3, 4, 0, 1),
        (4, 2, 2, 1.5),
        (6, 3, 3, 1.5),
        (6, 2, 2, 1.5),
        (4, 3, 2, 1.5),
    ],
)
def test_tiny_placements_are_close_to_the_optimum(
    num_experts: int, num_ranks: int, num_redundant: int, bound: float
) -> None:
    ratios = []
    for seed in range(12):
        loads = drawn_loads(("uniform", "zipf", "tokens")[seed % 3], num_experts, seed)
        placement = balanced(loads, num_ranks, num_redundant)
        ratios.append(imbalance_of(placement, loads) / optimum(loads, num_ranks, placement.slots_per_rank))
    assert min(ratios) > 1 - 1e-9
    assert max(ratios) < bound + 1e-9
    assert np.mean(ratios) < 1.1


def optimum(loads: NDArray[np.float64], num_ranks: int, slots_per_rank: int) -> float:
    """Return the lowest imbalance of all placements without an expert twice on a rank."""
    ranks = list(itertools.combinations(range(len(loads)), slots_per_rank))
    return min(
        imbalance_of(ExpertPlacement(len(loads), slots), loads)
        for slots in itertools.combinations_with_replacement(ranks, num_ranks)
        if len(set().union(*slots)) == len(loads)
    )


def test_imbalance_compares_the_busiest_rank_with_the_mean() -> None:
    assert imbalance([[0, 1], [0, 2]], [4, 6, 2]) == pytest.approx((2 + 6) / 6)
    assert imbalance([[0, 1], [0, 2]], [0, 0, 0]) == 1
    assert imbalance([[0, 1, 2], []], [4, 6, 2]) == 2  # a rank that has just joined holds none


def test_a_hot_expert_is_replicated_on_every_rank() -> None:
    loads = drawn_loads("one hot", 16, 1)
    placement = balanced(loads, 4, 4)
    assert num_replicas(placement)[int(loads.argmax())] == 4
    assert imbalance_of(placement, loads) == pytest.approx(1)


def test_zero_loads_count_as_equal_loads() -> None:
    assert balanced(np.zeros(64), 8, 16) == balanced(np.ones(64), 8, 16) == contiguous(64, 8, 16)
    assert balanced(np.zeros(64), 8, 0, 8, 4) == balanced(np.ones(64), 8, 0, 8, 4) == contiguous(64, 8)


def test_the_only_rank_with_room_may_already_hold_the_expert() -> None:
    loads = [1, 1, 1, 1, 1, 2, 1, 1, 2, 2, 2, 2, 2]  # true of the last replica
    placement = balanced(loads, 3, 14)
    assert placement.slots_per_rank == 9
    assert imbalance_of(placement, loads) == pytest.approx(1, abs=0.06)


def test_hot_groups_are_placed_on_different_nodes() -> None:
    loads = np.repeat([9, 8, 1, 2, 1, 1, 1, 1], 8) + np.arange(64) / 64
    placement = balanced(loads, 8, 0, num_groups=8, num_nodes=4)
    nodes_of_hot = [[rank // 2 for rank, experts in enumerate(placement.slots) if hot in experts] for hot in (0, 8)]
    assert nodes_of_hot[0] != nodes_of_hot[1]
    assert imbalance_of(placement, loads) < 1.5 < 2.5 < imbalance_of(contiguous(64, 8), loads)


def test_ranks_with_enough_slots_hold_all_experts() -> None:
    placement = balanced([5, 0, 1], 2, 5)
    assert placement.slots == ((0, 1, 2, 0), (0, 1, 2, 0))
    assert imbalance_of(placement, [5, 0, 1]) == pytest.approx(1)


@pytest.mark.parametrize("num_redundant", [0, 8, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_stay_on_a_node(kind: str, num_redundant: int) -> None:
    num_experts, num_ranks, num_groups, num_nodes = 64, 8, 8, 4
    for seed in range(5):
        loads = drawn_loads(kind, num_experts, seed)
        placement = balanced(loads, num_ranks, num_redundant, num_groups, num_nodes)
        nodes_of = {
            (expert // 8, rank // 2) for rank, experts in enumerate(placement.slots) for expert in experts
        }  # (group, node)
        assert len(nodes_of) == num_groups
        assert set(Counter(node for _, node in nodes_of).values()) == {2}
        if num_redundant == 0:  # the first placement keeps groups together as well
            assert imbalance_of(placement, loads) <= imbalance_of(contiguous(num_experts, num_ranks), loads)


@pytest.mark.parametrize(
    ("num_ranks", "num_redundant", "num_groups", "num_nodes"),
    [(8, 16, 8, 3), (9, 16, 8, 2), (8, 16, 1, 2), (4, 200, 8, 4)],  # the last has more slots than a node has experts
)
def test_without_even_nodes_the_policy_is_global(
    num_ranks: int, num_redundant: int, num_groups: int, num_nodes: int
) -> None:
    loads = drawn_loads("uniform", 64, 3)
    assert balanced(loads, num_ranks, num_redundant, num_groups, num_nodes) == balanced(loads, num_ranks, num_redundant)


@pytest.mark.parametrize(
    ("loads", "published", "reached"),
    [
        (
            [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
            [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
            1.1694,  # published: 1.2081
        ),
        (
            [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
            [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
            1.2422,  # as published
        ),
    ],
)
def test_the_published_eplb_example_is_matched(loads: list[int], published: list[int], reached: float) -> None:
    """12 experts in 4 groups, with 4 redundant, on 8 ranks of 2 nodes."""
    theirs = ExpertPlacement(12, tuple(zip(published[::2], published[1::2], strict=True)))
    ours = balanced(loads, 8, 4, num_groups=4, num_nodes=2)
    assert all(len(experts) == 6 for experts in nodes(ours) | nodes(theirs))
    assert imbalance_of(ours, loads) == pytest.approx(reached, abs=1e-4)
    assert imbalance_of(ours, loads) <= imbalance_of(theirs, loads)


def nodes(placement: ExpertPlacement) -> set[frozenset[int]]:
    """Return the experts of each of two nodes."""
    half = placement.num_ranks // 2
    return {frozenset().union(*placement.slots[:half]), frozenset().union(*placement.slots[half:])}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_invalid_loads_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="the load of expert 1 is"):
        balanced([1.0, wrong, 2.0], 2, 0)


def test_invalid_sizes_are_refused() -> None:
    for loads in ([], [[1, 2], [3, 4]], 3):
        with pytest.raises(ValueError, match="one number per expert"):
            balanced(loads, 2, 0)
    for num_groups, num_nodes in ((0, 1), (1, 0), (3, 1)):
        with pytest.raises(ValueError, match="groups of 4 experts"):
            balanced([1, 2, 3, 4], 2, 0, num_groups, num_nodes)
    with pytest.raises(ValueError, match="cannot be placed"):
        balanced([1, 2, 3, 4], 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_nodes", [1, 8])
def test_a_layer_of_a_large_model_takes_less_than_50_ms(kind: str, num_nodes: int) -> None:
    times_s = []
    for seed in range(3):
        loads = drawn_loads(kind, 256, seed)
        start_s = time.thread_time()  # CPU time of this thread: others may run in between
        balanced(loads, 64, 32, num_groups=8, num_nodes=num_nodes)
        times_s.append(time.thread_time() - start_s)
    assert min(times_s) < 0.05

"""Group-limited routing on ranks of several nodes: an expert group stays on one node."""

import numpy as np
import pytest

from baton.engine.experts.rebalance import better_slots

NUM_EXPERTS, NUM_GROUPS = 32, 8


def groups_of(slots: list[list[int]], ranks: range) -> list[int]:
    """Return the groups with an expert on these ranks."""
    return sorted({expert * NUM_GROUPS // NUM_EXPERTS for rank in ranks for expert in slots[rank]})


@pytest.mark.parametrize("num_redundant", [0, 8])
def test_groups_stay_whole_on_a_node(num_redundant: int) -> None:
    loads = np.random.default_rng(3).integers(1, 1000, NUM_EXPERTS)
    start = [list(range(8 * rank, 8 * rank + 8)) for rank in range(4)]
    slots = better_slots(start, loads, num_redundant, NUM_GROUPS, num_nodes=2)
    first, second = groups_of(slots, range(2)), groups_of(slots, range(2, 4))
    assert sorted(first + second) == list(range(NUM_GROUPS))
    assert len(first) == len(second)
    again = better_slots(slots, loads, num_redundant, NUM_GROUPS, num_nodes=2)
    assert again == slots  # nothing moves without a reason
    anywhere = better_slots(start, loads, num_redundant)
    assert set(groups_of(anywhere, range(2))) & set(groups_of(anywhere, range(2, 4)))


# Equal up to 1%, which is enough for another placement.
NEARLY_EQUAL = 10_000 + np.random.default_rng(1).integers(0, 100, NUM_EXPERTS)


@pytest.mark.parametrize("num_groups", [NUM_GROUPS, 1])  # 1 cannot be divided over the nodes: the policy is global
def test_small_gains_move_nothing(num_groups: int) -> None:
    slots = [list(range(8 * rank, 8 * rank + 8)) for rank in range(4)]
    assert better_slots(slots, NEARLY_EQUAL, 0, num_groups, num_nodes=2) == slots
    heavy = np.array([1000] * 4 + [10] * 28)
    assert better_slots(slots, heavy, 0, num_groups, num_nodes=2) != slots


def test_groups_on_several_nodes_move_whatever_the_gain() -> None:
    spread = [list(range(rank, NUM_EXPERTS, 4)) for rank in range(4)]
    slots = better_slots(spread, NEARLY_EQUAL, 0, NUM_GROUPS, num_nodes=2)
    assert not set(groups_of(slots, range(2))) & set(groups_of(slots, range(2, 4)))

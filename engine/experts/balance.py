"""Experts placed by their loads, so that no rank has many more tokens to compute than the others.

This follows the expert-parallelism load balancer (EPLB) that DeepSeek published: the README of
github.com/deepseek-ai/EPLB and section 3.4 of the DeepSeek-V3 technical report (arXiv:2412.19437). Heavy experts get
replicas; replicas are packed to ranks, the heaviest first, each to the lightest rank that has room. We add swaps
between ranks for as long as these help, and a comparison with the placement that no loads are needed for.

All ranks of a group compute the same placement from the same loads. So nothing here may depend on the machine: sums go
from left to right (a vectorised sum adds in an order of its own), and ties are decided by index.
"""

import heapq
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baton.engine.experts.placement import ExpertPlacement, IntArray, contiguous, num_slots_per_rank

FloatArray = NDArray[np.float64]
SWAPS_PER_PACK = 8  # at most; each makes the heaviest pack lighter, the last ones by very little
LEAST_GAIN = 1e-9  # of the heaviest pack's load, for a swap to be worth it


def balanced(
    loads: ArrayLike, num_ranks: int, num_redundant: int, num_groups: int = 1, num_nodes: int = 1
) -> ExpertPlacement:
    """Places experts of these loads (tokens, or anything in proportion) on ranks, with replicas of the heavy ones.

    EPLB's hierarchical policy if the groups divide evenly over the nodes: groups of experts that follow each other are
    packed to nodes, so that a token whose experts are chosen from few groups goes to few nodes; each node makes
    replicas of its own experts, and packs them to its ranks, which follow each other too. Else its global policy, which
    is the same with one group on one node; so it is also if the ranks do not divide evenly over the nodes, or have more
    slots than a node has experts. Without hierarchy it is never worse than contiguous() of the same sizes.

    ValueError for loads that are negative, infinite or NaN, and for sizes that cannot be.
    """
    weights = _checked(loads)
    num_experts = len(weights)
    slots_per_rank = num_slots_per_rank(num_experts, num_ranks, num_redundant)
    if num_groups < 1 or num_nodes < 1 or num_experts % num_groups:
        raise ValueError(
            f"{num_groups} groups of {num_experts} experts on {num_nodes} nodes cannot be: there must be one of each "
            "at least, and groups must be of equal sizes"
        )
    divides = num_groups % num_nodes == 0 and num_ranks % num_nodes == 0
    if num_nodes > 1 and divides and slots_per_rank <= num_experts // num_nodes:
        slots = _hierarchical(weights, num_ranks // num_nodes, slots_per_rank, num_groups, num_nodes)
    else:
        slots = _global(weights, num_ranks, slots_per_rank)
    return ExpertPlacement(num_experts, tuple(tuple(experts) for experts in slots.tolist()))


def imbalance(slots: Sequence[Sequence[int]], loads: Sequence[float] | NDArray[np.generic]) -> float:
    """Tokens of the busiest rank over those of the mean rank, if an expert's replicas share evenly; 1 is best.

    slots: experts by rank, perhaps not equally many on all; 1 also for no load.
    """
    num_replicas = Counter(expert for held in slots for expert in held)
    by_rank = [sum(float(loads[expert]) / num_replicas[expert] for expert in held) for held in slots]
    total = sum(map(float, loads))
    return max(by_rank) * len(slots) / total if total else 1.0


def _checked(loads: ArrayLike) -> FloatArray:
    weights = np.asarray(loads, dtype=np.float64)
    if weights.ndim != 1 or not len(weights):
        raise ValueError(f"loads must be one number for each expert of a layer, not of shape {weights.shape}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        expert = int(wrong.argmax())
        raise ValueError(f"the load of expert {expert} is {weights[expert]}: loads are finite, and 0 at least")
    return weights


def _hierarchical(
    loads: FloatArray, ranks_per_node: int, slots_per_rank: int, num_groups: int, num_nodes: int
) -> IntArray:
    """The better of two: groups on nodes as they follow each other, and groups packed to nodes by their loads."""
    members = np.arange(len(loads), dtype=np.int64).reshape(num_groups, -1)  # [num_groups, experts of a group]
    group_loads = np.cumsum(loads[members], axis=1)[:, -1]
    in_order = np.arange(num_groups, dtype=np.int64).reshape(num_nodes, -1)  # [num_nodes, groups of a node]
    choices = []
    for groups in (in_order, _packed(in_order.ravel(), group_loads, num_nodes)):
        nodes = [members[np.sort(node)].ravel() for node in groups]  # logical experts of each node
        parts = [experts[_global(loads[experts], ranks_per_node, slots_per_rank)] for experts in nodes]
        choices.append(np.concatenate(parts))
    return _best(choices, loads)


def _global(loads: FloatArray, num_ranks: int, slots_per_rank: int) -> IntArray:
    """Experts placed on ranks regardless of nodes, [num_ranks, slots_per_rank]."""
    num_experts = len(loads)
    if slots_per_rank >= num_experts:  # every rank can hold every expert, and all of them the same
        everything = np.arange(slots_per_rank, dtype=np.int64) % num_experts
        return np.tile(everything, (num_ranks, 1))
    num_slots = num_ranks * slots_per_rank
    counts = _replica_counts(loads, num_slots, most=num_ranks)
    packed = _packed(np.repeat(np.arange(num_experts, dtype=np.int64), counts), loads / counts, num_ranks)
    return _best([contiguous(num_experts, num_ranks, num_slots - num_experts).as_array(), packed], loads)


def _best(choices: Sequence[IntArray], loads: FloatArray) -> IntArray:
    """Whose busiest rank has the fewest tokens; the first of equals."""

    def busiest(slots: IntArray) -> float:
        counts = np.bincount(slots.ravel(), minlength=len(loads))
        return float(_pack_loads(slots, loads / counts).max())

    return min(choices, key=busiest)


def _pack_loads(packs: IntArray, weights: FloatArray) -> FloatArray:
    """The sum of each pack's weights, added from left to right."""
    loads: FloatArray = np.cumsum(weights[packs], axis=1)[:, -1]
    return loads


def _replica_counts(loads: FloatArray, num_slots: int, most: int) -> IntArray:
    """Replicas of each expert: one, and each further slot to the expert whose replicas are the heaviest by then.

    No expert gets more than `most`. Of equally heavy ones, that with the fewest replicas is the next.
    """
    counts = [1] * len(loads)
    queue = [(-load, 1, expert) for expert, load in enumerate(loads.tolist()) if most > 1]
    heapq.heapify(queue)
    for _ in range(num_slots - len(loads)):
        _, count, expert = heapq.heappop(queue)
        counts[expert] = count + 1
        if count + 1 < most:
            heapq.heappush(queue, (-float(loads[expert]) / (count + 1), count + 1, expert))
    return np.array(counts, dtype=np.int64)


def _packed(items: IntArray, weights: FloatArray, num_packs: int) -> IntArray:
    """Packs items evenly in number and about evenly in weight, and none twice in one pack, [num_packs, items a pack].

    An item that comes several times stands for its replicas; it comes num_packs times at most.
    """
    room = len(items) // num_packs
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    loads = [0.0] * num_packs
    for item in sorted(items.tolist(), key=lambda item: (-weights[item], item)):
        weight = float(weights[item])
        having_room = [pack for pack in range(num_packs) if len(packs[pack]) < room]
        fitting = [pack for pack in having_room if item not in packs[pack]]
        if fitting:
            chosen = min(fitting, key=lambda pack: (loads[pack], len(packs[pack])))
        else:  # whoever has room has the item already: one of the others gives it another item for this one
            chosen = _make_room(item, having_room[0], packs, loads, weights)
        packs[chosen].append(item)
        loads[chosen] += weight
    return _swapped(np.array(packs, dtype=np.int64), weights)


def _make_room(item: int, taker: int, packs: list[list[int]], loads: list[float], weights: FloatArray) -> int:
    """Moves an item to the taker from the lightest pack without the given one, which then has room; returns that pack.

    There is one: less than num_packs of the item are packed. It is full, and the taker is not: so it has one to give.
    """
    giver = min((pack for pack in range(len(packs)) if item not in packs[pack]), key=lambda pack: (loads[pack], pack))
    given = min(set(packs[giver]).difference(packs[taker]), key=lambda other: (weights[other], other))
    packs[giver].remove(given)
    packs[taker].append(given)
    loads[giver] -= float(weights[given])
    loads[taker] += float(weights[given])
    return giver


def _swapped(packs: IntArray, weights: FloatArray) -> IntArray:
    """Exchanges an item of the heaviest pack for a lighter one of another, the best pair first, while this helps."""
    num_packs = len(packs)
    holds = np.zeros((num_packs, len(weights)), dtype=bool)
    np.put_along_axis(holds, packs, True, axis=1)
    for _ in range(SWAPS_PER_PACK * num_packs):
        loads = _pack_loads(packs, weights)
        heaviest = int(loads.argmax())
        own = packs[heaviest]
        gains = weights[own][:, None, None] - weights[packs][None]  # [place, other pack, its place]
        peaks = np.maximum(loads[heaviest] - gains, loads[None, :, None] + gains)
        kept_apart = holds[:, own].T[:, :, None] | holds[heaviest][packs][None]  # either would have one of them twice
        peaks[kept_apart] = np.inf
        place, other, its_place = np.unravel_index(int(peaks.argmin()), peaks.shape)
        if peaks[place, other, its_place] >= loads[heaviest] * (1 - LEAST_GAIN):
            break
        given, taken = own[place], packs[other, its_place]
        packs[heaviest, place], packs[other, its_place] = taken, given
        holds[heaviest, [given, taken]] = False, True
        holds[other, [given, taken]] = True, False
    return packs

"""Load-balanced expert placement: no rank gets many more tokens to compute than the others.

This follows DeepSeek's expert-parallelism load balancer (EPLB): the README of github.com/deepseek-ai/EPLB and section
3.4 of the DeepSeek-V3 technical report (arXiv:2412.19437). Heavy experts get replicas. Replicas are packed onto ranks,
heaviest first, each onto the lightest rank with a free slot. In addition, we swap experts between ranks while that
helps, and compare the result with the contiguous placement.

All ranks of a group must compute the same placement from the same loads, so nothing here may depend on the machine:
sums run from left to right (a vectorised sum has an unspecified order), and ties are broken by index.
"""

import heapq
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baton.engine.experts.placement import ExpertPlacement, IntArray, contiguous, num_slots_per_rank

FloatArray = NDArray[np.float64]
SWAPS_PER_PACK = 8  # at most; later swaps gain very little
MIN_GAIN = 1e-9  # smallest gain of a swap, as a fraction of the heaviest pack's load


def balanced(
    loads: ArrayLike, num_ranks: int, num_redundant: int, num_groups: int = 1, num_nodes: int = 1
) -> ExpertPlacement:
    """Place experts on ranks by their loads (tokens, or anything proportional), with replicas of the heavy ones.

    Uses EPLB's hierarchical policy if the groups divide evenly over the nodes: groups of consecutive experts are packed
    onto nodes, so that a token routed to few groups goes to few nodes; each node replicates its own experts and packs
    them onto its ranks, which are consecutive too. Otherwise, or if the ranks do not divide evenly over the nodes or
    have more slots than a node has experts, uses EPLB's global policy, which equals one group on one node. The global
    policy is never worse than contiguous() with the same sizes.

    Raises ValueError for loads that are negative, infinite or NaN, and for impossible sizes.
    """
    weights = _checked(loads)
    num_experts = len(weights)
    slots_per_rank = num_slots_per_rank(num_experts, num_ranks, num_redundant)
    if num_groups < 1 or num_nodes < 1 or num_experts % num_groups:
        raise ValueError(
            f"{num_groups} groups of {num_experts} experts on {num_nodes} nodes are not possible: there must be at "
            "least one of each, and groups must have equal sizes"
        )
    if is_hierarchical(num_experts, num_ranks, slots_per_rank, num_groups, num_nodes):
        slots = _hierarchical(weights, num_ranks // num_nodes, slots_per_rank, num_groups, num_nodes)
    else:
        slots = _global(weights, num_ranks, slots_per_rank)
    return ExpertPlacement(num_experts, tuple(tuple(experts) for experts in slots.tolist()))


def is_hierarchical(num_experts: int, num_ranks: int, slots_per_rank: int, num_groups: int, num_nodes: int) -> bool:
    """Return whether `balanced` keeps each group of experts on one node."""
    divides = num_groups % num_nodes == 0 and num_ranks % num_nodes == 0
    return num_nodes > 1 and divides and slots_per_rank <= num_experts // num_nodes


def imbalance(slots: Sequence[Sequence[int]], loads: Sequence[float] | NDArray[np.generic]) -> float:
    """Return the busiest rank's tokens over the mean rank's, if replicas share their expert's load evenly; 1 is best.

    slots: experts by rank; ranks may have different numbers. Returns 1 without any load.
    """
    num_replicas = Counter(expert for held in slots for expert in held)
    by_rank = [sum(float(loads[expert]) / num_replicas[expert] for expert in held) for held in slots]
    total = sum(map(float, loads))
    return max(by_rank) * len(slots) / total if total else 1.0


def _checked(loads: ArrayLike) -> FloatArray:
    weights = np.asarray(loads, dtype=np.float64)
    if weights.ndim != 1 or not len(weights):
        raise ValueError(f"loads must be one number per expert of a layer, not of shape {weights.shape}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        expert = int(wrong.argmax())
        raise ValueError(f"the load of expert {expert} is {weights[expert]}: loads must be finite and 0 or more")
    return weights


def _hierarchical(
    loads: FloatArray, ranks_per_node: int, slots_per_rank: int, num_groups: int, num_nodes: int
) -> IntArray:
    """Return the better of two placements: groups on nodes in order, and groups packed onto nodes by load."""
    members = np.arange(len(loads), dtype=np.int64).reshape(num_groups, -1)  # [num_groups, experts of a group]
    group_loads = np.cumsum(loads[members], axis=1)[:, -1]
    in_order = np.arange(num_groups, dtype=np.int64).reshape(num_nodes, -1)  # [num_nodes, groups of a node]
    placements = []
    for groups in (in_order, _packed(in_order.ravel(), group_loads, num_nodes)):
        nodes = [members[np.sort(node)].ravel() for node in groups]  # logical experts of each node
        parts = [experts[_global(loads[experts], ranks_per_node, slots_per_rank)] for experts in nodes]
        placements.append(np.concatenate(parts))
    return _best(placements, loads)


def _global(loads: FloatArray, num_ranks: int, slots_per_rank: int) -> IntArray:
    """Place experts on ranks regardless of nodes; returns [num_ranks, slots_per_rank]."""
    num_experts = len(loads)
    if slots_per_rank >= num_experts:  # every rank can hold every expert
        everything = np.arange(slots_per_rank, dtype=np.int64) % num_experts
        return np.tile(everything, (num_ranks, 1))
    num_slots = num_ranks * slots_per_rank
    counts = _replica_counts(loads, num_slots, most=num_ranks)
    packed = _packed(np.repeat(np.arange(num_experts, dtype=np.int64), counts), loads / counts, num_ranks)
    return _best([contiguous(num_experts, num_ranks, num_slots - num_experts).as_array(), packed], loads)


def _best(placements: Sequence[IntArray], loads: FloatArray) -> IntArray:
    """Return the placement whose busiest rank has the fewest tokens; the first one of equals."""

    def busiest(slots: IntArray) -> float:
        counts = np.bincount(slots.ravel(), minlength=len(loads))
        return float(_pack_loads(slots, loads / counts).max())

    return min(placements, key=busiest)


def _pack_loads(packs: IntArray, weights: FloatArray) -> FloatArray:
    """Sum each pack's weights from left to right."""
    loads: FloatArray = np.cumsum(weights[packs], axis=1)[:, -1]
    return loads


def _replica_counts(loads: FloatArray, num_slots: int, most: int) -> IntArray:
    """Return the number of replicas per expert: at least one, each further slot to the heaviest replica so far.

    No expert gets more than `most`. Among equally heavy experts, the one with the fewest replicas is next.
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
    """Pack items into equally many per pack and about equal weight, no item twice in a pack.

    Returns [num_packs, items per pack]. An item that occurs several times stands for its replicas; it may occur at most
    num_packs times.
    """
    room = len(items) // num_packs
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    loads = [0.0] * num_packs
    for item in sorted(items.tolist(), key=lambda item: (-weights[item], item)):
        weight = float(weights[item])
        not_full = [pack for pack in range(num_packs) if len(packs[pack]) < room]
        fitting = [pack for pack in not_full if item not in packs[pack]]
        if fitting:
            chosen = min(fitting, key=lambda pack: (loads[pack], len(packs[pack])))
        else:  # every pack that is not full already has the item: a full pack must move another item there first
            chosen = _make_room(item, not_full[0], packs, loads, weights)
        packs[chosen].append(item)
        loads[chosen] += weight
    return _swapped(np.array(packs, dtype=np.int64), weights)


def _make_room(item: int, target: int, packs: list[list[int]], loads: list[float], weights: FloatArray) -> int:
    """Free a slot in the lightest pack without `item` by moving one of its items to `target`; returns that pack.

    Such a pack exists, since fewer than num_packs copies of the item are packed. It is full and the target is not, so
    it has an item that the target lacks.
    """
    source = min((pack for pack in range(len(packs)) if item not in packs[pack]), key=lambda pack: (loads[pack], pack))
    moved = min(set(packs[source]).difference(packs[target]), key=lambda other: (weights[other], other))
    packs[source].remove(moved)
    packs[target].append(moved)
    loads[source] -= float(weights[moved])
    loads[target] += float(weights[moved])
    return source


def _swapped(packs: IntArray, weights: FloatArray) -> IntArray:
    """Swap items of the heaviest pack for lighter ones of other packs, the best pair first, while this helps."""
    num_packs = len(packs)
    holds = np.zeros((num_packs, len(weights)), dtype=bool)
    np.put_along_axis(holds, packs, True, axis=1)
    for _ in range(SWAPS_PER_PACK * num_packs):
        loads = _pack_loads(packs, weights)
        heaviest = int(loads.argmax())
        own = packs[heaviest]
        gains = weights[own][:, None, None] - weights[packs][None]  # [place, other pack, its place]
        peaks = np.maximum(loads[heaviest] - gains, loads[None, :, None] + gains)
        duplicates = holds[:, own].T[:, :, None] | holds[heaviest][packs][None]  # a pack would hold an item twice
        peaks[duplicates] = np.inf
        place, other, its_place = np.unravel_index(int(peaks.argmin()), peaks.shape)
        if peaks[place, other, its_place] >= loads[heaviest] * (1 - MIN_GAIN):
            break
        given, taken = own[place], packs[other, its_place]
        packs[heaviest, place], packs[other, its_place] = taken, given
        holds[heaviest, [given, taken]] = False, True
        holds[other, [given, taken]] = True, False
    return packs

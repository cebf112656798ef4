"""How one expert placement becomes another while as few weights as possible change hands."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from baton.engine.experts.placement import ExpertPlacement, IntArray

UNREACHED = np.iinfo(np.int64).max


def with_few_moves(old: Sequence[Sequence[int]], new: ExpertPlacement, num_nodes: int = 1) -> ExpertPlacement:
    """The new placement, its ranks and their slots so ordered that the fewest experts change hands.

    old: the experts of each rank, perhaps not equally many on all. Ranks of a node are exchanged as a whole among each
    other, and nodes among nodes, which leaves what a node holds together. With one node, or ranks that do not divide
    evenly over the nodes, any rank may be exchanged.
    """
    if len(old) != new.num_ranks:
        raise ValueError(f"experts stand on {len(old)} ranks, and are to stand on {new.num_ranks}: must be as many")
    nodes = num_nodes if num_nodes > 0 and new.num_ranks % num_nodes == 0 else 1
    sources = _sources(_num_kept(old, new), nodes)
    slots = (kept_in_place(held, new.slots[source]) for held, source in zip(old, sources, strict=True))
    return ExpertPlacement(new.num_experts, tuple(slots))


def kept_in_place(held: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The wanted experts in such order that those that are held already keep their slots."""
    rest, kept = Counter(wanted), dict[int, int]()  # kept by slot
    for slot, expert in enumerate(held[: len(wanted)]):
        if rest[expert]:
            rest[expert] -= 1
            kept[slot] = expert
    skipped, new = Counter(kept.values()), []
    for expert in wanted:
        if skipped[expert]:
            skipped[expert] -= 1
        else:
            new.append(expert)
    incoming = iter(new)
    return tuple(kept[slot] if slot in kept else next(incoming) for slot in range(len(wanted)))


def best_assignment(gains: IntArray) -> list[int]:
    """For each row of a square matrix a column of its own, such that the gains there add up to the most.

    The Hungarian method with shortest augmenting paths: rows are added one by one, and each is given a column at the
    least cost by changing the columns of those before it. Of order size ** 3, and exact, for whole numbers have no
    rounding.
    """
    size = len(gains)
    costs = gains.max() - gains
    row_prices, column_prices = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    row_of, column_of = np.full(size, -1), np.full(size, -1)
    for row in range(size):
        column, via, distances, done = _shortest_path(row, costs - column_prices, row_prices, row_of)
        shorter = distances[column] - distances[done]  # of those on the way, than of the path's end
        column_prices[done] -= shorter
        row_prices[row_of[done]] += shorter
        row_prices[row] += distances[column]
        while True:  # each row on the path takes the column that it led to, and leaves its own to the row before it
            taker = int(via[column])
            row_of[column] = taker
            column, column_of[taker] = int(column_of[taker]), column
            if taker == row:
                break
    return [int(column) for column in column_of]


def _shortest_path(
    row: int, costs: IntArray, row_prices: IntArray, row_of: IntArray
) -> tuple[int, IntArray, IntArray, IntArray]:
    """The nearest column that no row has: it, the row that each column was reached from, how far, and those on the way.

    Costs have the columns' prices taken off; with the rows' taken off too, no step is shorter than 0.
    """
    distances = costs[row] - row_prices[row]
    via = np.full(len(costs), row)
    unvisited = np.ones(len(costs), dtype=bool)
    visited: list[int] = []
    while True:
        column = int(np.where(unvisited, distances, UNREACHED).argmin())
        if row_of[column] < 0:
            return column, via, distances, np.array(visited, dtype=np.int64)
        unvisited[column] = False
        visited.append(column)
        owner = int(row_of[column])
        through = distances[column] + costs[owner] - row_prices[owner]
        closer = unvisited & (through < distances)
        distances[closer] = through[closer]
        via[closer] = owner


def _num_kept(old: Sequence[Sequence[int]], new: ExpertPlacement) -> IntArray:
    """How many slots an old rank that becomes a new one need not load, [num_ranks, num_ranks]."""
    olds, news = _num_held(old, new.num_experts), _num_held(new.slots, new.num_experts)
    return np.stack([np.minimum(held, news).sum(axis=1) for held in olds])


def _num_held(slots: Sequence[Sequence[int]], num_experts: int) -> IntArray:
    """How often each rank holds each expert, [num_ranks, num_experts]."""
    return np.stack([np.bincount(np.array(held, dtype=np.int64), minlength=num_experts) for held in slots])


def _sources(num_kept: IntArray, num_nodes: int) -> list[int]:
    """For each old rank the new one that it becomes."""
    size = len(num_kept) // num_nodes
    blocks = num_kept.reshape(num_nodes, size, num_nodes, size)
    inner = [[best_assignment(blocks[old, :, new]) for new in range(num_nodes)] for old in range(num_nodes)]
    ranks = np.arange(size)
    totals = [
        [int(blocks[old, ranks, new, inner[old][new]].sum()) for new in range(num_nodes)] for old in range(num_nodes)
    ]
    nodes = best_assignment(np.array(totals, dtype=np.int64))
    return [node * size + rank for old, node in enumerate(nodes) for rank in inner[old][node]]

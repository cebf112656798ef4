"""Migration from one expert placement to another that moves as few experts as possible."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from baton.engine.experts.placement import ExpertPlacement, IntArray

UNREACHED = np.iinfo(np.int64).max


def with_few_moves(old: Sequence[Sequence[int]], new: ExpertPlacement, num_nodes: int = 1) -> ExpertPlacement:
    """Return the new placement with its ranks and slots permuted so that the fewest experts move.

    old: the experts of each rank; ranks may have different numbers. Only ranks of the same node are permuted with each
    other, and nodes as a whole, so that the experts of a node stay together. With one node, or if ranks do not divide
    evenly over the nodes, any ranks may be permuted. Raises ValueError if the numbers of ranks differ.
    """
    if len(old) != new.num_ranks:
        raise ValueError(f"the old placement has {len(old)} ranks, the new one {new.num_ranks}: must be equal")
    nodes = num_nodes if num_nodes > 0 and new.num_ranks % num_nodes == 0 else 1
    sources = _sources(_num_kept(old, new), nodes)
    slots = (kept_in_place(held, new.slots[source]) for held, source in zip(old, sources, strict=True))
    return ExpertPlacement(new.num_experts, tuple(slots))


def kept_in_place(held: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the wanted experts in an order in which those already held keep their slots."""
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
    """Return the one-to-one assignment of columns to the rows of a square matrix that maximises the sum of gains.

    The Hungarian method with shortest augmenting paths: rows are added one by one, and each gets a column at the least
    cost, by reassigning earlier rows if needed. O(size ** 3), and exact, since integers are not rounded.
    """
    size = len(gains)
    costs = gains.max() - gains
    row_prices, column_prices = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    row_of, column_of = np.full(size, -1), np.full(size, -1)
    for row in range(size):
        column, via, distances, done = _shortest_path(row, costs - column_prices, row_prices, row_of)
        shorter = distances[column] - distances[done]  # how much nearer the visited columns are than the path's end
        column_prices[done] -= shorter
        row_prices[row_of[done]] += shorter
        row_prices[row] += distances[column]
        while True:  # augment: each row on the path moves to the next column and frees its own for the previous row
            new_row = int(via[column])
            row_of[column] = new_row
            column, column_of[new_row] = int(column_of[new_row]), column
            if new_row == row:
                break
    return [int(column) for column in column_of]


def _shortest_path(
    row: int, costs: IntArray, row_prices: IntArray, row_of: IntArray
) -> tuple[int, IntArray, IntArray, IntArray]:
    """Find the nearest unassigned column by Dijkstra's algorithm.

    Returns that column, the row from which each column was reached, all distances, and the visited columns. Column
    prices are already subtracted from `costs`; with row prices subtracted too, no edge is negative.
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
    """Return how many slots old rank i keeps if it becomes new rank j, [num_ranks, num_ranks]."""
    olds, news = _num_held(old, new.num_experts), _num_held(new.slots, new.num_experts)
    return np.stack([np.minimum(held, news).sum(axis=1) for held in olds])


def _num_held(slots: Sequence[Sequence[int]], num_experts: int) -> IntArray:
    """Return how often each rank holds each expert, [num_ranks, num_experts]."""
    return np.stack([np.bincount(np.array(held, dtype=np.int64), minlength=num_experts) for held in slots])


def _sources(num_kept: IntArray, num_nodes: int) -> list[int]:
    """Return, for each old rank, the new rank that it becomes."""
    size = len(num_kept) // num_nodes
    blocks = num_kept.reshape(num_nodes, size, num_nodes, size)
    inner = [[best_assignment(blocks[old, :, new]) for new in range(num_nodes)] for old in range(num_nodes)]
    ranks = np.arange(size)
    totals = [
        [int(blocks[old, ranks, new, inner[old][new]].sum()) for new in range(num_nodes)] for old in range(num_nodes)
    ]
    nodes = best_assignment(np.array(totals, dtype=np.int64))
    return [node * size + rank for old, node in enumerate(nodes) for rank in inner[old][node]]

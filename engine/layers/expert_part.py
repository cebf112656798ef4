"""Whole experts on the ranks of one model: every rank has every token, and computes those of its own experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.experts.permutation import ExpertRows, rows_by_slot, weighted_sum
from baton.engine.layers.experts import ROW_TILE


class PartExchange:
    """An ExpertExchange that sends nothing: what other ranks' experts give is zero here, and the ranks' sum has it."""

    def __init__(self, first: int, count: int, row_tile: int = ROW_TILE) -> None:
        """Our experts are `count` ones from `first` on; they stand in slots in their order. row_tile: see Experts."""
        self._first = first
        self._count = count
        self._row_tile = row_tile

    def dispatch(self, x: Tensor, chosen: Tensor) -> "PartDispatch":
        """See ExpertExchange."""
        num_chosen = chosen.shape[1]
        slots = chosen.flatten() - self._first
        entries = torch.nonzero((slots >= 0) & (slots < self._count)).flatten()  # those of ours
        rows = rows_by_slot(x, entries // num_chosen, slots[entries], self._count, self._row_tile)
        return PartDispatch(rows, entries)


@dataclass(frozen=True, slots=True)
class PartDispatch:
    """See Dispatch."""

    rows: ExpertRows
    entries: Tensor  # which of all (token, chosen expert) have rows here

    def arrive(self) -> ExpertRows:
        """At once."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch."""
        results = outputs.new_zeros(weights.numel(), outputs.shape[1])
        results[self.entries] = outputs[self.rows.places]
        return weighted_sum(results, None, weights)

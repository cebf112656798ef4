"""Whole experts on the ranks of one model: every rank has every token, and computes those of its own experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.expert_parallel import ExpertRows, rows_by_slot, weighted_sum


class PartExchange:
    """An ExpertExchange that sends nothing: what other ranks' experts give is zero here, and the ranks' sum has it."""

    def __init__(self, first: int, count: int) -> None:
        """Our experts are `count` ones from `first` on; they stand in slots in their order."""
        self._first = first
        self._count = count

    def dispatch(self, x: Tensor, chosen: Tensor) -> "PartDispatch":
        """See ExpertExchange."""
        num_chosen = chosen.shape[1]
        slots = chosen.flatten() - self._first
        entries = torch.nonzero((slots >= 0) & (slots < self._count)).flatten()  # those of ours
        rows = rows_by_slot(x, entries // num_chosen, slots[entries], self._count)
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
        return weighted_sum(results.view(*weights.shape, outputs.shape[1]), weights)

"""Adapters of routed experts on CPUs: for each expert, products of low rank for each run of rows with the same adapter.

Tokens whose adapter changes experts of a layer are dispatched apart from all others, which are computed as without
adapters. An expert multiplies all of their rows by its weights at once, whatever their adapters. So a token's result
depends on its own adapter only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from baton.engine.layers.experts import AdaptedRows, ExpertProduct
from baton.engine.layers.moe import MoE
from baton.engine.lora.segment import Product, Segment, add_products

NONE = -1  # adapter of rows that repeat others, to fill a tile


class SegmentedExperts:
    """Adapters of the experts of one layer."""

    def __init__(self, segments: Callable[[], Sequence[Segment]], places: range) -> None:
        """segments: returns those of the step; places: of the experts' products, see AdaptableExperts."""
        self._segments = segments
        self._places = places

    def dispatch(self, moe: MoE, x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor] | None:
        """Start to send tokens to their experts; see MixtureAdapters."""
        segments = [each for each in self._segments() if self._places in each.products.mixtures]
        if not segments:
            return None
        places = [torch.arange(each.rows.start, each.rows.stop) for each in segments]
        adapters = torch.arange(len(places)).repeat_interleave(torch.tensor([len(each) for each in places]))
        changed = torch.cat(places)
        addends = SegmentedExpertAddends(segments, self._places)
        if len(changed) == len(x):
            return _dispatch(moe, x, chosen, weights, adapters, addends)
        others = torch.ones(len(x), dtype=torch.bool).index_fill_(0, changed, False).nonzero().flatten()
        compute_others = moe.dispatch(x[others], chosen[others], weights[others])
        compute_changed = _dispatch(moe, x[changed], chosen[changed], weights[changed], adapters, addends)

        def compute() -> Tensor:
            result = torch.empty_like(x)
            result[changed], result[others] = compute_changed(), compute_others()
            return result

        return compute


def _dispatch(
    moe: MoE, x: Tensor, chosen: Tensor, weights: Tensor, adapters: Tensor, addends: "SegmentedExpertAddends"
) -> Callable[[], Tensor]:
    """Start to send tokens to their experts, all with an adapter of the step: adapters [num_tokens]."""
    dispatch = moe.exchange.dispatch(x, chosen)

    def compute() -> Tensor:
        arrived = dispatch.receive()
        adapted = AdaptedRows(arrived.of_tokens(adapters, NONE), addends)
        return dispatch.combine(moe.experts(arrived.rows, arrived.sizes, adapted), weights)

    return compute


@dataclass(frozen=True, slots=True)
class SegmentedExpertAddends:
    """Products of low rank of a step's adapters, for the rows of one layer's experts."""

    segments: Sequence[Segment]  # by the number of the adapter in the step
    places: range

    def add(
        self, product: ExpertProduct, x: Tensor, output: Tensor, sizes: Sequence[int] | Tensor, adapters: Tensor
    ) -> None:
        """Change output in place; see ExpertAddends."""
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        runs = ((self._product(product, run), run.rows) for run in _runs(sizes, adapters))
        add_products(runs, x, output)

    def _product(self, product: ExpertProduct, run: "ExpertRun") -> Product | None:
        return self.segments[run.adapter].products.of_layers[self.places[2 * run.slot + product.value]]


@dataclass(frozen=True, slots=True)
class ExpertRun:
    """Adjacent rows of one expert with the same adapter."""

    slot: int
    adapter: int
    rows: slice


def _runs(sizes: Sequence[int], adapters: Tensor) -> Iterator[ExpertRun]:
    """Yield the runs of rows with adapters, which are sorted by slot; sizes: rows of each slot."""
    slots = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rows = torch.stack((slots, adapters))
    is_first = torch.ones(len(slots) + 1, dtype=torch.bool)  # of a run; also the end of the last one
    is_first[1:-1] = (rows[:, 1:] != rows[:, :-1]).any(0)
    starts = is_first.nonzero().flatten()
    of_runs = rows[:, starts[:-1]].tolist()
    for slot, adapter, (start, stop) in zip(*of_runs, pairwise(starts.tolist()), strict=True):
        if adapter != NONE:
            yield ExpertRun(slot, adapter, slice(start, stop))

"""Adapters on CPUs: for each run of rows with the same adapter, two products of low rank.

A run's products have the rows of its own adapter only. In bf16, with Baton's own products, a token's result therefore
has the same bits in any batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.layers.linear import Linear
from baton.engine.layers.weights.panel_weight import can_have_panels
from baton.engine.lora.low_rank import LowRank

Product = Callable[[Tensor, Tensor], None]  # adds what an adapter does to a Linear's input to its output


class PanelProduct:
    """Baton's own products, in bf16."""

    def __init__(self, matrices: LowRank) -> None:
        self._a = Linear(matrices.a)
        self._outputs = [(each.columns, each.ranks, Linear(each.b)) for each in matrices.outputs]

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_rows, out_features] in place, for x [num_rows, in_features]."""
        inner = self._a(x.bfloat16())
        for columns, ranks, b in self._outputs:
            output[:, columns].add_(b(inner[:, ranks]))


class PlainProduct:
    """Torch's products in fp32, which for few rows take a fraction of the time of oneDNN's in bf16."""

    def __init__(self, matrices: LowRank) -> None:
        self._a = matrices.a.t().float().contiguous()
        self._outputs = [(each.columns, each.ranks, each.b.t().float().contiguous()) for each in matrices.outputs]

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_rows, out_features] in place, for x [num_rows, in_features]."""
        inner = torch.mm(x.float(), self._a)
        for columns, ranks, b in self._outputs:
            if output.dtype == torch.float32:
                output[:, columns].addmm_(inner[:, ranks], b)
            else:
                output[:, columns].add_(torch.mm(inner[:, ranks], b))


def product_of(matrices: LowRank) -> Product:
    """Lay out matrices for products."""
    has_panels = all(map(can_have_panels, (matrices.a, *(each.b for each in matrices.outputs))))
    return PanelProduct(matrices) if has_panels else PlainProduct(matrices)


@dataclass(frozen=True, slots=True)
class Segment:
    """Adjacent rows of a step with the same adapter."""

    rows: slice
    products: Sequence[Product | None]  # of each Linear


class SegmentedAdapters:
    """Adapters of a model on a CPU."""

    def __init__(self, linears: Sequence[Linear]) -> None:
        """Let the Linears add the products of their rows' adapters."""
        self.load_s = 0.0
        self._products: dict[int, Sequence[Product | None]] = {}
        self.segments: list[Segment] = []
        for place, linear in enumerate(linears):
            linear.addend = SegmentedAddend(self, place)

    @torch.inference_mode()
    def add(self, number: int, matrices: Sequence[LowRank | None]) -> None:
        """Lay out the matrices for products; see ModelAdapters."""
        self._products[number] = [None if each is None else product_of(each) for each in matrices]

    def remove(self, number: int) -> None:
        """Drop an adapter; the products of the last step stay until the next one."""
        self._products.pop(number, None)

    def plan(self, batch: Batch) -> None:
        """Divide the batch's rows into segments; those without an adapter are in none."""
        self.segments, end = [], 0
        for number, run in groupby(zip(batch.adapters, batch.query_lens_list, strict=False), itemgetter(0)):
            start, end = end, end + sum(length for _, length in run)
            if number:
                self.segments.append(Segment(slice(start, end), self._products[number]))

    def resident(self) -> frozenset[int]:
        """Return the numbers of all adapters."""
        return frozenset(self._products)


class SegmentedAddend:
    """Products of the adapters that are added to the output of one Linear."""

    def __init__(self, adapters: SegmentedAdapters, place: int) -> None:
        self._adapters = adapters
        self._place = place

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        """Return output [num_tokens, out_features] for x [num_tokens, in_features], changed in place."""
        for segment in self._adapters.segments:
            product = segment.products[self._place]
            if product is not None:
                product(x[segment.rows], output[segment.rows])
        return output

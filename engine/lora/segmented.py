"""Adapters on CPUs: for each run of rows with the same adapter, two products of low rank.

A run's products have the rows of its own adapter only. In bf16, with Baton's own products, a token's result therefore
has the same bits in any batch, except if heads' matrices change; see HeadProduct.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.layers.head_linear import HeadLinear
from baton.engine.layers.weights.panel_weight import can_have_panels
from baton.engine.lora.adaptable_layer import AdaptableExperts, AdaptableLayer, Inputs
from baton.engine.lora.head_products import HeadProduct
from baton.engine.lora.low_rank import LowRank
from baton.engine.lora.panel_product import PanelLookup, PanelProduct
from baton.engine.lora.segment import AdapterProducts, Product, Segment, add_products
from baton.engine.lora.segmented_experts import SegmentedExperts


class PlainProduct:
    """Torch's products in fp32, which for few rows take a fraction of the time of oneDNN's in bf16."""

    def __init__(self, matrices: LowRank, inputs: Inputs) -> None:
        self._is_lookup = inputs is Inputs.TOKEN_IDS
        self._a = matrices.a.t().float().contiguous()
        self._outputs = [(each.columns, each.ranks, each.b.t().float().contiguous()) for each in matrices.outputs]

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_rows, out_features] in place, for x [num_rows, in_features] or [num_rows]."""
        inner = F.embedding(x, self._a) if self._is_lookup else torch.mm(x.float(), self._a)
        for columns, ranks, b in self._outputs:
            if output.dtype == torch.float32:
                output[:, columns].addmm_(inner[:, ranks], b)
            else:
                output[:, columns].add_(torch.mm(inner[:, ranks], b))


class RescaledProduct:
    """A product of DoRA, which adds multiples of the base outputs, too."""

    def __init__(self, matrices: LowRank, product: Product, bias: Tensor | None) -> None:
        """bias: in the base outputs; it is not rescaled."""
        self._product = product
        self._gains = [
            (each.columns, each.gain, None if bias is None else bias[each.columns] * each.gain)
            for each in matrices.outputs
            if each.gain is not None
        ]

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_rows, out_features] in place, for x [num_rows, in_features]."""
        for columns, gain, shift in self._gains:
            rescaled = output[:, columns] * gain
            output[:, columns].add_(rescaled if shift is None else rescaled.sub_(shift))
        self._product(x, output)


def product_of(matrices: LowRank, inputs: Inputs = Inputs.STATES, bias: Tensor | None = None) -> Product:
    """Lay out matrices for products. bias: of the layer whose outputs they change."""
    has_panels = all(map(can_have_panels, (matrices.a, *(each.b for each in matrices.outputs))))
    product: Product
    if not has_panels:
        product = PlainProduct(matrices, inputs)
    else:
        product = PanelLookup(matrices) if inputs is Inputs.TOKEN_IDS else PanelProduct(matrices)
    is_rescaled = any(each.gain is not None for each in matrices.outputs)
    return RescaledProduct(matrices, product, bias) if is_rescaled else product


def _product(layer: AdaptableLayer, matrices: LowRank) -> Product:
    if isinstance(layer.layer, HeadLinear):
        return HeadProduct(layer.layer, matrices)
    return product_of(matrices, layer.inputs, layer.bias)


class SegmentedAdapters:
    """Adapters of a model on a CPU."""

    def __init__(self, layers: Sequence[AdaptableLayer], mixtures: Sequence[AdaptableExperts] = ()) -> None:
        """Let the layers add the products of their rows' adapters.

        mixtures: the experts, whose layers follow `layers` in an adapter's matrices.
        """
        self.load_s = 0.0
        self._layers = [*layers, *(layer for each in mixtures for layer in each.layers)]
        self._mixtures = [each.places for each in mixtures]
        self._products: dict[int, AdapterProducts] = {}
        self.segments: list[Segment] = []  # of the tokens
        self.last_segments: list[Segment] = []  # of the tokens whose logits are wanted
        for place, layer in enumerate(layers):
            layer.layer.addend = SegmentedAddend(self, place, is_last=layer.inputs is Inputs.LAST_STATES)
        for each in mixtures:
            each.moe.adapters = SegmentedExperts(lambda: self.segments, each.places)

    @torch.inference_mode()
    def add(self, number: int, matrices: Sequence[LowRank | None]) -> None:
        """Lay out the matrices for products; see ModelAdapters."""
        products = [
            None if each is None else _product(layer, each) for layer, each in zip(self._layers, matrices, strict=True)
        ]
        self._products[number] = AdapterProducts.of(products, self._mixtures)

    def remove(self, number: int) -> None:
        """Drop an adapter; the products of the last step stay until the next one."""
        self._products.pop(number, None)

    def plan(self, batch: Batch | None) -> None:
        """Divide the batch's rows into segments; those without an adapter are in none."""
        if batch is None or not batch.adapters:
            self.segments = self.last_segments = []
            return
        rows = [run.number for run in batch.adapters for _ in range(run.num_tokens)]
        self.segments = self._segments(rows)
        self.last_segments = self._segments([rows[row] for row in batch.logits_indices.tolist()])

    def _segments(self, rows: Sequence[int]) -> list[Segment]:
        """Return the segments of rows, by the number of each row's matrices."""
        segments, end = [], 0
        for number, run in groupby(rows):
            start, end = end, end + len(list(run))
            if number:
                segments.append(Segment(slice(start, end), self._products[number]))
        return segments

    def resident(self) -> frozenset[int]:
        """Return the numbers of all adapters."""
        return frozenset(self._products)


class SegmentedAddend:
    """Products of the adapters that are added to the output of one layer."""

    def __init__(self, adapters: SegmentedAdapters, place: int, *, is_last: bool) -> None:
        self._adapters = adapters
        self._place = place
        self._is_last = is_last

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        """Return output [num_rows, out_features] for x [num_rows, in_features] or [num_rows], changed in place."""
        segments = self._adapters.last_segments if self._is_last else self._adapters.segments
        add_products(((each.products.of_layers[self._place], each.rows) for each in segments), x, output)
        return output

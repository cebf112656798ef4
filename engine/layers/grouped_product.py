"""One product for the weights of all experts, each with the rows that are its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.errors import UnsupportedModel
from baton.engine.layers.fp8_weight import E4M3, RowScaledWeight, quantise
from baton.engine.layers.linear import Linear


class GroupedProduct(Protocol):
    """Weights of one shape, one after another."""

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """rows: [num_rows, in_features], the first weight's first; ends: [num_weights] int32, of each one's rows."""
        ...

    def split(self) -> list[Linear]:
        """The single weights again, as views."""
        ...


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """Of weights in bfloat16."""

    weight: Tensor  # [num_weights, out_features, in_features]

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """See GroupedProduct."""
        return torch._grouped_mm(rows, self.weight.transpose(1, 2), offs=ends)

    def split(self) -> list[Linear]:
        """See GroupedProduct."""
        return [Linear(weight, packed=False) for weight in self.weight]


@dataclass(frozen=True, slots=True)
class Fp8Product:
    """Of weights in FP8 whose rows have scales."""

    values: Tensor  # [num_weights, out_features, in_features] in e4m3
    scales: Tensor  # [num_weights, out_features] fp32

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """See GroupedProduct."""
        tokens, scales = quantise(rows, rows.shape[1])
        return torch._scaled_grouped_mm(
            tokens, self.values.transpose(1, 2), scales[:, 0], self.scales, offs=ends, out_dtype=rows.dtype
        )

    def split(self) -> list[Linear]:
        """See GroupedProduct."""
        pairs = zip(self.values, self.scales, strict=True)
        return [Linear(RowScaledWeight(values, scales[:, None])) for values, scales in pairs]


def grouped_product(linears: Sequence[Linear]) -> GroupedProduct:
    """A copy of the weights, all of them in FP8 or none. Raises UnsupportedModel if some are."""
    scaled = [each.form for each in linears if isinstance(each.form, RowScaledWeight)]
    if not scaled:
        return PlainProduct(torch.stack([each.weight for each in linears]))
    if len(scaled) < len(linears):
        raise UnsupportedModel(f"{len(scaled)} of {len(linears)} experts of a layer are in FP8: must be all or none")
    values = torch.stack([each.values.view(torch.uint8) for each in scaled])  # bytes, which any device can stack
    return Fp8Product(values.view(E4M3), torch.stack([each.scales[:, 0] for each in scaled]))

"""Grouped product: all experts' weights in one call, each with its own rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.errors import UnsupportedModel
from baton.engine.layers.fp8_tokens.quantise import E4M3, quantise
from baton.engine.layers.linear import Linear
from baton.engine.layers.weights.fp8_weight import RowScaledWeight


class GroupedProduct(Protocol):
    """Stacked weights of the same shape."""

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Multiply each weight's rows with it; returns [num_rows, out_features].

        rows: [num_rows, in_features], sorted by weight; ends: [num_weights] int32, end of each weight's rows.
        """
        ...

    def split(self) -> list[Linear]:
        """Return the single weights as views."""
        ...


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """Grouped product of bfloat16 weights."""

    weight: Tensor  # [num_weights, out_features, in_features]
    bias: Tensor | None = None  # [num_weights, out_features]

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Multiply each weight's rows with it; see GroupedProduct."""
        result = torch._grouped_mm(rows, self.weight.transpose(1, 2), offs=ends)
        if self.bias is None:
            return result
        places = torch.arange(len(rows), dtype=ends.dtype, device=ends.device)
        return result.add_(self.bias[torch.searchsorted(ends, places, right=True)])

    def split(self) -> list[Linear]:
        """Return the single weights as views."""
        biases = [None] * len(self.weight) if self.bias is None else list(self.bias)
        return [Linear(weight, bias, packed=False) for weight, bias in zip(self.weight, biases, strict=True)]


@dataclass(frozen=True, slots=True)
class Fp8Product:
    """Grouped product of row-scaled FP8 weights."""

    values: Tensor  # [num_weights, out_features, in_features] in e4m3
    scales: Tensor  # [num_weights, out_features] fp32

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Multiply each weight's rows with it; see GroupedProduct."""
        tokens, scales = quantise(rows, rows.shape[1])
        return torch._scaled_grouped_mm(
            tokens, self.values.transpose(1, 2), scales[:, 0], self.scales, offs=ends, out_dtype=rows.dtype
        )

    def split(self) -> list[Linear]:
        """Return the single weights as views."""
        pairs = zip(self.values, self.scales, strict=True)
        return [Linear(RowScaledWeight(values, scales[:, None])) for values, scales in pairs]


def grouped_product(linears: Sequence[Linear]) -> GroupedProduct:
    """Stack copies of the weights, which must be all in FP8 or none. Raises UnsupportedModel for a mixture."""
    scaled = [each.form for each in linears if isinstance(each.form, RowScaledWeight)]
    biases = [each.bias for each in linears if each.bias is not None]
    if not scaled:
        bias = torch.stack(biases) if biases else None
        return PlainProduct(torch.stack([each.weight for each in linears]), bias)
    if biases:
        raise UnsupportedModel("experts in FP8 with biases are not supported on a GPU")
    if len(scaled) < len(linears):
        raise UnsupportedModel(f"{len(scaled)} of {len(linears)} experts of a layer are in FP8: must be all or none")
    values = torch.stack([each.values.view(torch.uint8) for each in scaled])  # bytes, which any device can stack
    return Fp8Product(values.view(E4M3), torch.stack([each.scales[:, 0] for each in scaled]))

"""Adapters of the matrices of attention heads.

Latent attention never computes keys and values: it multiplies queries by the heads' rows of `kv_b_proj`, and the
attended latents by the others. An adapter's part `b @ a` of these rows is applied in the same places, as two products
of low rank. A request has one adapter for its whole context, so the result is that of adapted keys and values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.layers.head_linear import HeadLinear
from baton.engine.lora.low_rank import LowRank

FEW_ROWS = 16  # up to as many, products in fp32 take a third of the time of those in bf16; of 256, ten times as long


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """Matrices of low rank for the products of heads; one of them is the same for all heads."""

    first: Tensor  # [num_heads, in_features, rank] or [in_features, rank]
    second: Tensor  # [num_heads, rank, out_features] or [rank, out_features]

    @classmethod
    def of(cls, layer: HeadLinear, a: Tensor, b: Tensor) -> "HeadMatrices":
        """Return views of an adapter's matrices a [rank, columns of the source] and b [rows of the source, rank]."""
        heads = b.view(len(layer.weight), -1, b.shape[1])
        return cls(heads, a) if layer.is_transposed else cls(a.t(), heads.mT)

    def inner(self, x: Tensor) -> Tensor:
        """Return [num_heads, num_tokens, rank] for x [num_tokens, num_heads, in_features]."""
        return torch.matmul(x.transpose(0, 1).to(self.first.dtype), self.first)

    def add(self, inner: Tensor, output: Tensor) -> None:
        """Add what the inner products give to output [num_tokens, num_heads, out_features], in place."""
        heads, second = output.transpose(0, 1), self.second.expand(len(inner), *self.second.shape[-2:])
        if inner.dtype == output.dtype:
            heads.baddbmm_(inner, second)  # without memory for a second output
        else:
            heads.add_(torch.bmm(inner, second))


def rescaled(layer: HeadLinear, x: Tensor, output: Tensor, gains: Tensor) -> Tensor:
    """Return multiples of the base output of x, both [num_tokens, num_heads, features].

    gains: multiples of the source's rows in all heads, [num_rows] or [num_tokens, num_rows].
    """
    of_heads = gains.view(*gains.shape[:-1], len(layer.weight), -1)
    if layer.is_transposed:
        return layer.product((x * of_heads).to(x.dtype))
    return output * of_heads


class HeadProduct:
    """Products of an adapter on a CPU, of few rows in fp32."""

    def __init__(self, layer: HeadLinear, matrices: LowRank) -> None:
        (output,) = matrices.outputs  # the rows of all heads are of one projection
        self._layer = layer
        self._of_few = HeadMatrices.of(layer, matrices.a.float(), output.b.float())
        self._of_many = HeadMatrices.of(layer, matrices.a, output.b)
        self._gain = output.gain  # of DoRA

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_tokens, num_heads, out_features] in place, for x [num_tokens, num_heads, in_features]."""
        if self._gain is not None:
            output.add_(rescaled(self._layer, x, output, self._gain))
        matrices = self._of_few if len(x) <= FEW_ROWS else self._of_many
        matrices.add(matrices.inner(x), output)

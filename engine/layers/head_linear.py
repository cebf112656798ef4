"""A matrix of each attention head, by which the head's rows are multiplied."""

import torch
from torch import Tensor

from baton.engine.layers.linear import Addend
from baton.engine.layers.linear_source import LinearSource


class HeadLinear:
    """`x @ weight` of each head, without a bias."""

    bias = None

    def __init__(self, weight: Tensor, source: LinearSource, *, is_transposed: bool = False) -> None:
        """weight: [num_heads, in_features, out_features].

        source: rows of the checkpoint's matrix, head by head: outputs of the heads, or inputs if it `is_transposed`.
        """
        self.weight = weight
        self.source = source
        self.is_transposed = is_transposed
        self.addend: Addend | None = None  # of adapters; None: they are not enabled

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, num_heads, out_features] for x [num_tokens, num_heads, in_features]."""
        output = self.product(x)
        return output if self.addend is None else self.addend(x, output)

    def product(self, x: Tensor) -> Tensor:
        """Return the product without adapters."""
        return torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1)

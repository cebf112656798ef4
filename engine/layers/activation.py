"""Activation between the projections of a feed-forward layer."""

import torch
from torch import Tensor

from baton.engine.activation import MLPActivation
from baton.engine.ops.factory import ops_for


def activated(product: Tensor, activation: MLPActivation) -> Tensor:
    """Return the input of the last projection for the product of the first, which may be overwritten.

    product: [num_tokens, 2 * size], gate and up; for relu2, the square of ReLU (arXiv 2109.08668), which has no gate,
    [num_tokens, size].
    """
    if activation == "relu2":
        return torch.relu_(product).square_()
    return ops_for(product.device).gate_and_mul(product, activation)

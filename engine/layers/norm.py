"""Normalisation."""

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor


class RMSNorm:
    """Root mean square norm (arXiv 1910.07467) over the last dimension, computed in fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight  # [size]
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size]. Returns the same shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

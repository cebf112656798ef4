"""Norms of query and key heads, for heads that no fused operation norms and rotates at once."""

import torch
from torch import Tensor

from baton.engine.ops.base import HeadNorms, LayerOps


def norm_heads(ops: LayerOps, heads: Tensor, norms: HeadNorms) -> Tensor:
    """Return the norms of heads [num_tokens, num_heads, head_dim], adjacent heads with the same weight at once."""
    normed, first = [], 0
    for count in norms.counts:
        normed.append(ops.rms_norm(heads[:, first : first + count], norms.weight[first], norms.eps, norms.offset))
        first += count
    return torch.cat(normed, dim=1)

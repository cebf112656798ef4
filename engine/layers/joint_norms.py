"""Norms over all query heads at once and over all key heads at once (OLMo 2, arXiv 2501.00656)."""

import torch
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.ops.factory import ops_for
from baton.engine.parallel.tensor_parallel import TensorRanks


class JointNorms:
    """RMS norms of the whole projections to queries and to keys, whose heads may be divided among ranks.

    The ranks add up their sums of squares, so that each norms its own heads by the mean over all heads.
    """

    def __init__(self, weights: tuple[Tensor, Tensor], eps: float, tensor: TensorRanks) -> None:
        """weights: those of this rank's query heads and key heads, each flat."""
        self.weights = weights
        self.eps = eps
        self.tensor = tensor
        widths = torch.tensor([[len(weight) for weight in weights]], dtype=torch.float32)
        # Where ranks share a key head, each of its squares is added that many times.
        self.divisors = (widths * tensor.shard.size).to(weights[0].device)

    def __call__(self, heads: Tensor) -> Tensor:
        """Return the norms of heads [num_tokens, num_heads + num_kv_heads, head_dim], queries first."""
        num_queries = len(self.weights[0]) // heads.shape[2]
        parts = [heads[:, :num_queries].flatten(1), heads[:, num_queries:].flatten(1)]
        if self.tensor.shard.size == 1:
            ops = ops_for(heads.device)
            normed = [ops.rms_norm(part, weight, self.eps) for part, weight in zip(parts, self.weights, strict=True)]
        else:
            normed = self._normed_with_other_ranks(parts)
        return torch.cat(normed, dim=1).view(len(heads), -1, heads.shape[2])

    def _normed_with_other_ranks(self, parts: list[Tensor]) -> list[Tensor]:
        exact = [part.float() for part in parts]
        squares = self.tensor.sum(torch.stack([part.square().sum(1) for part in exact], dim=1))  # [num_tokens, 2]
        factors = (squares / self.divisors + self.eps).rsqrt()
        return [
            (part * factors[:, place, None] * weight.float()).to(weight.dtype)
            for place, (part, weight) in enumerate(zip(exact, self.weights, strict=True))
        ]


def load_joint_norms(weights: Weights, prefix: str, config: ModelConfig, tensor: TensorRanks) -> JointNorms:
    """Load the parts of `prefix`.q_norm and .k_norm that belong to this rank's heads."""
    counts, shard, width = (config.num_heads, config.num_kv_heads), tensor.shard, config.head_dim
    query, key = (
        weights.take(f"{prefix}.{name}.weight", count * width, part=(shard.of(count, width),))
        for name, count in zip(("q_norm", "k_norm"), counts, strict=True)
    )
    return JointNorms((query, key), config.rms_norm_eps, tensor)

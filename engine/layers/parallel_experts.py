"""Dense MLP and routed experts next to each other, each with norms of its own (Gemma 4)."""

from dataclasses import dataclass

from torch import Tensor

from baton.engine.layers.linear import Projection
from baton.engine.layers.moe import MoE
from baton.engine.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class ParallelExperts:
    """Sum of a dense MLP and of experts, whose router has a norm of its own too."""

    dense: Projection
    experts: MoE
    before_dense: RMSNorm
    after_dense: RMSNorm
    before_experts: RMSNorm
    after_experts: RMSNorm
    before_router: RMSNorm

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for x [num_tokens, hidden], which is not normed, in the same shape."""
        dense = self.after_dense(self.dense(self.before_dense(x)))
        routed = self.experts(self.before_experts(x), routed_by=self.before_router(x))
        return dense + self.after_experts(routed)

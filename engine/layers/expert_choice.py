"""Which experts a token goes to, and with what weights."""

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from engine.config import MoEConfig


class ExpertChoice:
    """The router of a mixture of experts, in fp32: softmax or sigmoid scores, group-limited top-k."""

    def __init__(self, config: MoEConfig, weight: Tensor, correction_bias: Tensor | None) -> None:
        """weight: [num_experts, hidden] fp32; correction_bias: [num_experts] fp32, for the choice only."""
        self.config = config
        self.weight = weight
        self.correction_bias = correction_bias

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [num_tokens, hidden]. Returns weights (fp32) and experts, each [num_tokens, num_experts_per_token]."""
        logits = F.linear(x.float(), self.weight)
        scores = logits.sigmoid() if self.config.scoring == "sigmoid" else logits.softmax(dim=-1)
        choice = scores if self.correction_bias is None else scores + self.correction_bias
        if self.config.num_groups > 1:
            choice = self._limit_groups(choice)
        experts = choice.topk(self.config.num_experts_per_token, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.config.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * self.config.routed_scaling_factor, experts

    def _limit_groups(self, choice: Tensor) -> Tensor:
        """Leaves the experts of the best groups only (DeepSeek-V2, section 2.2.2)."""
        num_groups = self.config.num_groups
        grouped = choice.view(
            choice.shape[0], num_groups, choice.shape[1] // num_groups
        )  # [num_tokens, num_groups, group_size]
        group_scores = grouped.topk(self.config.group_score_top, dim=-1).values.sum(dim=-1)
        best = group_scores.topk(self.config.topk_groups, dim=-1).indices
        is_best = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
        return grouped.masked_fill(~is_best.unsqueeze(-1), float("-inf")).view(choice.shape)

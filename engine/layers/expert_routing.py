"""Expert routing: the experts of each token and their weights."""

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.expert_pairs.choice import (
    MOST_EXPERTS,
    MOST_TOKENS,
    ChoiceKernels,
    choice_for,
    choose_in_torch,
)
from baton.engine.layers.experts import ROW_TILE
from baton.engine.layers.linear import Addend
from baton.engine.layers.linear_source import LinearSource, source_of_tensor
from baton.engine.layers.weights.panel_weight import SingleWeight, can_have_panels
from baton.engine.moe import MoEConfig

try:
    from baton.engine.native.layer_ops import ChoiceRule, choose_experts
except ImportError:  # installed without the compiled extensions
    choose_experts = None  # type: ignore[assignment]  # mypy has no optional function


class ExpertChoice:
    """Router of a mixture of experts, in fp32: softmax or sigmoid scores, group-limited top-k.

    With the native products, a token's experts and weights do not depend on the other tokens in the batch.
    """

    def __init__(
        self,
        config: MoEConfig,
        weight: Tensor,
        correction_bias: Tensor | None,
        bias: Tensor | None = None,
        factors: Tensor | None = None,
        source: LinearSource | None = None,
    ) -> None:
        """weight: [num_experts, hidden] fp32; correction_bias: [num_experts] fp32, used for routing only.

        bias: of the logits, [num_experts] fp32; factors: on the weights of each expert, the same; source: of weight.
        """
        self.source = source
        self.addend: Addend | None = None  # of adapters; None: they are not enabled
        self.factors = factors
        self.config = config
        self.weight = weight
        self.bias = bias
        self.correction_bias = None if correction_bias is None else correction_bias.contiguous()
        self._product = SingleWeight(weight) if can_have_panels(weight, inputs_of_unit=1) else None
        self._rule = _rule(config) if choose_experts is not None and weight.device.type == "cpu" else None
        self._is_plain = config.scoring == "softmax" and correction_bias is None and config.num_groups == 1

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (fp32) and experts, each [num_tokens, num_experts_per_token], for x [num_tokens, hidden]."""
        logits = self._logits(x)
        found = self._chosen(logits) if self._rule is None else self._chosen_natively(logits, self._rule)
        return found if self.factors is None else (found[0] * self.factors[found[1]], found[1])

    @property
    def _kernels(self) -> ChoiceKernels | None:
        return choice_for(self.weight.device)

    def _logits(self, x: Tensor) -> Tensor:
        if self._product is not None and x.dtype == torch.bfloat16:
            logits = self._product(x)
        elif 0 < len(x) <= MOST_TOKENS and self._kernels is not None and x.dtype == torch.bfloat16 and x.stride(1) == 1:
            logits = self._kernels.logits(x, self.weight)
        else:
            rows = x.float()
            if x.device.type == "cpu":
                rows = F.pad(rows, (0, 0, 0, -len(x) % ROW_TILE))
            logits = F.linear(rows, self.weight)[: len(x)]
        if self.addend is not None:
            logits = self.addend(x, logits)
        return logits if self.bias is None else logits + self.bias

    def _chosen_natively(self, logits: Tensor, rule: "ChoiceRule") -> tuple[Tensor, Tensor]:
        shape = len(logits), self.config.num_experts_per_token
        weights, experts = torch.empty(shape, dtype=torch.float32), torch.empty(shape, dtype=torch.int64)
        bias = 0 if self.correction_bias is None else self.correction_bias.data_ptr()
        pointers = logits.data_ptr(), bias, weights.data_ptr(), experts.data_ptr()
        choose_experts(*pointers, len(logits), rule, self.config.scoring == "sigmoid", torch.get_num_threads())
        return weights, experts

    def _chosen(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self._is_plain:
            kernels = self._kernels if len(logits) and logits.shape[1] <= MOST_EXPERTS else None
            choose = choose_in_torch if kernels is None else kernels.choose
            config = self.config
            return choose(logits, config.num_experts_per_token, config.routed_scaling_factor, config.norm_topk_prob)
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
        """Mask all experts outside the best groups (DeepSeek-V2, section 2.2.2)."""
        num_groups = self.config.num_groups
        grouped = choice.view(
            choice.shape[0], num_groups, choice.shape[1] // num_groups
        )  # [num_tokens, num_groups, group_size]
        group_scores = grouped.topk(self.config.group_score_top, dim=-1).values.sum(dim=-1)
        best = group_scores.topk(self.config.topk_groups, dim=-1).indices
        is_best = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
        return grouped.masked_fill(~is_best.unsqueeze(-1), float("-inf")).view(choice.shape)


def _rule(config: MoEConfig) -> "ChoiceRule":
    return ChoiceRule(
        num_experts=config.num_experts,
        num_chosen=config.num_experts_per_token,
        num_groups=config.num_groups,
        num_best_groups=config.topk_groups if config.num_groups > 1 else 1,
        num_group_scores=config.group_score_top if config.num_groups > 1 else 1,
        is_normed=config.norm_topk_prob,
        factor=config.routed_scaling_factor,
    )


def load_choice(weights: Weights, prefix: str, names: ExpertNames, hidden_size: int, config: MoEConfig) -> ExpertChoice:
    """Load the router of a layer's experts, which are below `prefix`."""
    count, correction, bias = config.num_experts, None, None
    weight = weights.take(f"{prefix}.{names.router}", count, hidden_size, dtype=torch.float32)
    if config.score_correction_bias:
        shape = (1, count) if names.correction_bias_is_row else (count,)
        correction = weights.take(f"{prefix}.{names.correction_bias}", *shape, dtype=torch.float32).flatten()
    if config.has_biases:
        bias = weights.take(f"{prefix}.{names.router_bias}", count, dtype=torch.float32)
    factors = None
    if names.router_factors is not None:
        factors = weights.take(f"{prefix}.{names.router_factors}", count, dtype=torch.float32)
    source = source_of_tensor(f"{prefix}.{names.router}", count, hidden_size)
    return ExpertChoice(config, weight, correction, bias, factors, source)

"""Mixture of experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import MoEConfig
from engine.layers.expert_choice import ExpertChoice
from engine.layers.linear import Linear
from engine.layers.mlp import MLP, load_mlp, silu_and_mul
from engine.weights import Weights, stack


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a family calls its experts' tensors, under the prefix of the layer's MLP."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


class MoE:
    """Routed experts, and shared ones that every token passes."""

    def __init__(self, choice: ExpertChoice, gate_up: Sequence[Linear], down: Sequence[Linear], shared: MLP | None):
        self.choice = choice
        self.gate_up = gate_up  # of each expert
        self.down = down
        self.shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden]. Returns the same shape."""
        weights, experts = self.choice(x)
        routed = self._route(x, weights, experts)
        return routed if self.shared is None else routed + self.shared(x)

    def _route(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Rows sorted by expert, each expert's in one product; a token's rows are then added in the order chosen."""
        num_tokens, num_chosen = experts.shape
        order = experts.flatten().argsort(stable=True)  # rows by expert; row r is token r // num_chosen
        counts = experts.flatten().bincount(minlength=len(self.gate_up)).tolist()
        busy = [(expert, count) for expert, count in enumerate(counts) if count]
        sizes = [count for _, count in busy]
        inputs = x[order // num_chosen].split_with_sizes(sizes)
        gate_up = torch.cat([self.gate_up[expert](rows) for (expert, _), rows in zip(busy, inputs, strict=True)])
        inner = silu_and_mul(gate_up).split_with_sizes(sizes)
        outputs = torch.cat([self.down[expert](rows) for (expert, _), rows in zip(busy, inner, strict=True)])
        outputs.mul_(weights.flatten()[order].unsqueeze(1))
        chosen = torch.empty_like(outputs)
        chosen[order] = outputs
        return chosen.view(num_tokens, num_chosen, -1).sum(dim=1)


def load_moe(
    weights: Weights, prefix: str, hidden_size: int, config: MoEConfig, names: ExpertNames, *, bias: bool = False
) -> MoE:
    """The experts under `prefix`, each in tensors of its own or all of them in fused ones (transformers 5)."""
    gate = weights.take(f"{prefix}.gate.weight", config.num_experts, hidden_size, dtype=torch.float32)
    correction_bias = None
    if config.score_correction_bias:
        correction_bias = weights.take(
            f"{prefix}.gate.e_score_correction_bias", config.num_experts, dtype=torch.float32
        )
    shared = None
    if config.num_shared_experts:
        size = config.intermediate_size * config.num_shared_experts
        shared = load_mlp(weights, f"{prefix}.shared_experts", hidden_size, size, bias=bias)
    load = _load_fused if f"{prefix}.experts.gate_up_proj" in weights else _load_separate
    gate_up, down = load(weights, f"{prefix}.experts", hidden_size, config, names)
    return MoE(ExpertChoice(config, gate, correction_bias), gate_up, down, shared)


def _load_separate(
    weights: Weights, prefix: str, hidden_size: int, config: MoEConfig, names: ExpertNames
) -> tuple[list[Linear], list[Linear]]:
    size = config.intermediate_size
    gate_up, down = [], []
    for expert in range(config.num_experts):
        of_expert = f"{prefix}.{expert}"
        pair = [f"{of_expert}.{names.gate}.weight", f"{of_expert}.{names.up}.weight"]
        gate_up.append(_expert_linear(stack(weights, pair, [size, size], hidden_size)))
        down.append(_expert_linear(stack(weights, [f"{of_expert}.{names.down}.weight"], [hidden_size], size)))
    return gate_up, down


def _load_fused(
    weights: Weights, prefix: str, hidden_size: int, config: MoEConfig, names: ExpertNames
) -> tuple[list[Linear], list[Linear]]:
    del names  # fused tensors have the same names in every family
    size, num_experts = config.intermediate_size, config.num_experts
    gate_up = weights.peek(f"{prefix}.gate_up_proj", num_experts, 2 * size, hidden_size)
    down = weights.peek(f"{prefix}.down_proj", num_experts, hidden_size, size)

    def own(expert: Tensor) -> Linear:
        return _expert_linear(expert.to(device=weights.device, dtype=weights.dtype, copy=True))

    return [own(expert) for expert in gate_up], [own(expert) for expert in down]


def _expert_linear(weight: Tensor) -> Linear:
    """In fp32 oneDNN's layout loses to the plain one for experts, which see few rows each; in bf16 it wins."""
    return Linear(weight, packed=weight.dtype != torch.float32)

"""Lower bound of any engine's time for a cell on a machine, from the arithmetic and memory traffic needed."""

from dataclasses import dataclass
from pathlib import Path

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import ModelConfig
from benchmarks.machine import MachineLimits

ELEMENT_BYTES = {"bf16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Floor:
    """Work of a model, without the small cost of quantisation scales, norms and activations."""

    shared_parameters: int  # used for every token, without the head
    head_parameters: int  # used for every sampled token
    expert_parameters: int  # of one expert in all layers
    num_experts: int
    num_experts_per_token: int
    kv_values: int  # cached per token in all layers
    attention_flop: int  # per token and attended token, in all layers

    @classmethod
    def of(cls, checkpoint: Path) -> "Floor":
        """Make it from the checkpoint's config.json."""
        return cls.of_config(read_model_config(checkpoint))

    @classmethod
    def of_config(cls, config: ModelConfig) -> "Floor":
        """Make it for a model with standard attention whose layers are all dense or all MoE."""
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        layer = config.hidden_size * (2 * query + 2 * kv)
        moe = config.moe
        if moe is None:
            layer += 3 * config.hidden_size * config.intermediate_size
            expert, num_experts, chosen = 0, 1, 1
        else:
            layer += config.hidden_size * moe.num_experts
            expert, num_experts = 3 * config.hidden_size * moe.intermediate_size, moe.num_experts
            chosen = moe.num_experts_per_token
        return cls(
            shared_parameters=layer * config.num_layers,
            head_parameters=config.hidden_size * config.vocab_size,
            expert_parameters=expert * config.num_layers,
            num_experts=num_experts,
            num_experts_per_token=chosen,
            kv_values=2 * kv * config.num_layers,
            attention_flop=4 * query * config.num_layers,
        )

    def prefill_s(self, limits: MachineLimits, num_new: int, num_before: int = 0) -> float:
        """Return the seconds of a prefill of `num_new` tokens after `num_before`, at the GEMM rate."""
        active = self.shared_parameters + self.num_experts_per_token * self.expert_parameters
        num_seen = num_new * num_before + num_new * (num_new + 1) // 2
        flop = 2 * (active * num_new + self.head_parameters) + self.attention_flop * num_seen
        return flop / limits.gemm_flop_per_s

    def decode_s(self, limits: MachineLimits, batch: int, context: float, weights: str, kv_cache: str) -> float:
        """Return the seconds of a decode step: reads of weights and KV, or arithmetic, whichever takes longer.

        Counts the experts that a batch needs on average under uniform routing.
        """
        needed = self.num_experts * (1 - (1 - self.num_experts_per_token / self.num_experts) ** batch)
        read = self.shared_parameters + self.head_parameters + needed * self.expert_parameters
        num_bytes = read * ELEMENT_BYTES[weights] + batch * context * self.kv_values * ELEMENT_BYTES[kv_cache]
        active = self.shared_parameters + self.head_parameters + self.num_experts_per_token * self.expert_parameters
        flop = batch * (2 * active + self.attention_flop * context)
        return max(num_bytes / limits.read_bytes_per_s, flop / limits.gemm_flop_per_s)

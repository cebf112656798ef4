"""The least time that any engine needs for a cell on a machine: what must be computed, and what must be read."""

from dataclasses import dataclass
from pathlib import Path

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import ModelConfig
from benchmarks.machine import MachineLimits

ELEMENT_BYTES = {"bf16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Floor:
    """A model's work. Scales of quantised weights, norms and activations are left out: they weigh little."""

    shared_parameters: int  # that every token is multiplied with, the head aside
    head_parameters: int  # that every sampled token is multiplied with
    expert_parameters: int  # of one expert in all layers
    num_experts: int
    num_experts_per_token: int
    kv_values: int  # that a token leaves in the cache, all layers together
    attention_flop: int  # of a token for each token that it sees, all layers together

    @classmethod
    def of(cls, checkpoint: Path) -> "Floor":
        """From the sizes in the checkpoint's config.json."""
        return cls.of_config(read_model_config(checkpoint))

    @classmethod
    def of_config(cls, config: ModelConfig) -> "Floor":
        """Of a model of plain attention, whose layers are all dense or all experts."""
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
        """Of one prompt's tokens after others: products at the matrix rate, and so is attention."""
        active = self.shared_parameters + self.num_experts_per_token * self.expert_parameters
        num_seen = num_new * num_before + num_new * (num_new + 1) // 2
        flop = 2 * (active * num_new + self.head_parameters) + self.attention_flop * num_seen
        return flop / limits.gemm_flop_per_s

    def decode_s(self, limits: MachineLimits, batch: int, context: float, weights: str, kv_cache: str) -> float:
        """Of a step: its weights and its KV out of memory, or its products, whichever takes longer.

        Of the experts, those that a batch needs on average when each is as likely as any other.
        """
        needed = self.num_experts * (1 - (1 - self.num_experts_per_token / self.num_experts) ** batch)
        read = self.shared_parameters + self.head_parameters + needed * self.expert_parameters
        num_bytes = read * ELEMENT_BYTES[weights] + batch * context * self.kv_values * ELEMENT_BYTES[kv_cache]
        active = self.shared_parameters + self.head_parameters + self.num_experts_per_token * self.expert_parameters
        flop = batch * (2 * active + self.attention_flop * context)
        return max(num_bytes / limits.read_bytes_per_s, flop / limits.gemm_flop_per_s)

"""Mixtral and Qwen3-MoE: grouped-query attention and a mixture of experts."""

from engine.attention.base import AttentionBackend
from engine.config import ModelConfig
from engine.expert_group import ExpertGroup
from engine.layers.attention import load_attention
from engine.layers.experts import ExpertNames
from engine.layers.mlp import load_mlp
from engine.layers.moe import load_moe
from engine.models.causal_lm import CausalLM, FeedForward, load_causal_lm
from engine.weights import Weights

MIXTRAL_NAMES = ExpertNames(gate="w1", up="w3", down="w2")


def load(
    weights: Weights, config: ModelConfig, backend: AttentionBackend, group: ExpertGroup | None = None
) -> CausalLM:
    """Reads a model with experts in all layers or in some."""

    def feed_forward(layer: int, prefix: str) -> FeedForward:
        if config.moe is None or not config.is_sparse(layer):
            return load_mlp(weights, f"{prefix}.mlp", config.hidden_size, config.intermediate_size)
        if f"{prefix}.block_sparse_moe.gate.weight" in weights:
            return load_moe(weights, f"{prefix}.block_sparse_moe", config.hidden_size, config.moe, MIXTRAL_NAMES, group)
        return load_moe(weights, f"{prefix}.mlp", config.hidden_size, config.moe, ExpertNames(), group)

    return load_causal_lm(
        weights, config, backend, lambda prefix: load_attention(weights, prefix, config, backend), feed_forward
    )

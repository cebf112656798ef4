"""Mixtral and Qwen3-MoE: grouped-query attention and a mixture of experts."""

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.experts.group import ExpertGroup
from baton.engine.layers.attention import load_attention
from baton.engine.layers.expert_reader import ExpertNames
from baton.engine.layers.mlp import load_mlp
from baton.engine.layers.moe import load_moe
from baton.engine.models.causal_lm import CausalLM, FeedForward, load_causal_lm
from baton.engine.parallel.tensor_parallel import TensorRanks

MIXTRAL_NAMES = ExpertNames(gate="w1", up="w3", down="w2")


def load(
    weights: Weights,
    config: ModelConfig,
    backend: AttentionBackend,
    tensor: TensorRanks,
    group: ExpertGroup | None = None,
) -> CausalLM:
    """Load this rank's shard of a model with experts in all or some layers; with a group, without the experts."""

    def feed_forward(layer: int, prefix: str) -> FeedForward:
        name, hidden = f"{prefix}.mlp", config.hidden_size
        if config.moe is None or not config.is_sparse(layer):
            return load_mlp(weights, name, hidden, config.intermediate_size, tensor)
        names = ExpertNames()
        if f"{prefix}.block_sparse_moe.gate.weight" in weights:
            name, names = f"{prefix}.block_sparse_moe", MIXTRAL_NAMES
        return load_moe(weights, name, hidden, config.moe, names, tensor, group)

    return load_causal_lm(
        weights,
        config,
        backend,
        tensor,
        lambda prefix: load_attention(weights, prefix, config, backend, tensor),
        feed_forward,
    )

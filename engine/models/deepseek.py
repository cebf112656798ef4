"""DeepSeek-V2, V2-Lite and V3: latent attention, shared and routed experts, dense first layers."""

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.experts.group import ExpertGroup
from baton.engine.layers.expert_reader import ExpertNames
from baton.engine.layers.latent_attention import load_latent_attention
from baton.engine.layers.mlp import load_mlp
from baton.engine.layers.moe import load_moe
from baton.engine.models.causal_lm import CausalLM, FeedForward, load_causal_lm
from baton.engine.parallel.tensor_parallel import TensorRanks


def load(
    weights: Weights,
    config: ModelConfig,
    backend: AttentionBackend,
    tensor: TensorRanks,
    group: ExpertGroup | None = None,
) -> CausalLM:
    """Load this rank's shard of a DeepSeek model; with a group, without the routed experts."""

    def feed_forward(layer: int, prefix: str) -> FeedForward:
        name, hidden, bias = f"{prefix}.mlp", config.hidden_size, config.mlp_bias
        if config.moe is None or not config.is_sparse(layer):
            return load_mlp(weights, name, hidden, config.intermediate_size, tensor, bias=bias)
        return load_moe(weights, name, hidden, config.moe, ExpertNames(), tensor, group, bias=bias)

    return load_causal_lm(
        weights,
        config,
        backend,
        tensor,
        lambda prefix: load_latent_attention(weights, prefix, config, backend, tensor),
        feed_forward,
    )

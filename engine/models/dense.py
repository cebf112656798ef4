"""Llama, Mistral, Qwen2 and Qwen3: the same structure, with biases and query/key norms as config options."""

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.layers.attention import load_attention
from baton.engine.layers.mlp import load_mlp
from baton.engine.models.causal_lm import CausalLM, load_causal_lm
from baton.engine.parallel.tensor_parallel import TensorRanks


def load(weights: Weights, config: ModelConfig, backend: AttentionBackend, tensor: TensorRanks) -> CausalLM:
    """Load this rank's shard of a dense model."""
    return load_causal_lm(
        weights,
        config,
        backend,
        tensor,
        lambda prefix: load_attention(weights, prefix, config, backend, tensor),
        lambda _, prefix: load_mlp(
            weights, f"{prefix}.mlp", config.hidden_size, config.intermediate_size, tensor, bias=config.mlp_bias
        ),
    )

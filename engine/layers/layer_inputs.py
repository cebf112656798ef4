"""Inputs of each layer besides the hidden states: the per-layer embeddings of Gemma 3n and 4."""

import math
from dataclasses import dataclass, replace

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.families.rounding import rounded
from baton.engine.layers.embedding import Embedding, load_table
from baton.engine.layers.linear import Linear, load_linear
from baton.engine.layers.norm import RMSNorm
from baton.engine.parallel.tensor_parallel import TensorRanks

HALF = 2**-0.5  # of the sum of two inputs


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Each layer's own input: an embedding of the token, and a projection of the model's first hidden state."""

    embedding: Embedding  # of all layers at once
    projection: Linear  # to the inputs of all layers
    scale: float  # of the projection
    norm: RMSNorm

    def __call__(self, token_ids: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs [num_tokens, size] of each layer, for token_ids [num_tokens] and x [num_tokens, hidden]."""
        shape = (len(x), -1, len(self.norm.weight))
        projected = self.norm((self.projection(x) * self.scale).view(shape))
        return ((projected + self.embedding(token_ids).view(shape)) * HALF).unbind(1)


@dataclass(frozen=True, slots=True)
class LayerEnd:
    """End of a layer: adds its own input, multiplied with a gate, if there is one, and scales the result."""

    gate: Linear | None
    projection: Linear | None
    norm: RMSNorm | None
    scale: float

    def __call__(self, x: Tensor, own: Tensor | None) -> Tensor:
        """Return the layer's output for x and its own input, both [num_tokens, size]."""
        if own is not None and self.gate is not None and self.projection is not None and self.norm is not None:
            gated = F.gelu(self.gate(x), approximate="tanh") * own
            x = x + self.norm(self.projection(gated))
        return x * self.scale


def load_layer_inputs(weights: Weights, config: ModelConfig, tensor: TensorRanks) -> LayerInputs | None:
    """Load the inputs of all layers; None if the model has none. Ranks divide the rows of the embedding."""
    size = config.layer_input_size
    if not size:
        return None
    width, vocab = config.num_layers * size, config.layer_input_vocab_size
    own = replace(
        config, vocab_size=vocab, hidden_size=width, embedding_multiplier=rounded(math.sqrt(size), config.dtype)
    )
    table = load_table(weights, own, tensor.shard.of(vocab), "model.embed_tokens_per_layer.weight")
    return LayerInputs(
        Embedding(table, tensor, own, weights.dtype),
        load_linear(weights, "model.per_layer_model_projection", config.hidden_size, width),
        config.hidden_size**-0.5,
        RMSNorm(weights.take("model.per_layer_projection_norm.weight", size), config.rms_norm_eps),
    )


def load_layer_end(weights: Weights, prefix: str, config: ModelConfig) -> LayerEnd | None:
    """Load the end of the layer `prefix`; None if it has none."""
    if not config.has_layer_scalars:
        return None
    scale = float(weights.take(f"{prefix}.layer_scalar", 1))
    size, hidden = config.layer_input_size, config.hidden_size
    if not size:
        return LayerEnd(None, None, None, scale)
    norm = RMSNorm(weights.take(f"{prefix}.post_per_layer_input_norm.weight", hidden), config.rms_norm_eps)
    gate = load_linear(weights, f"{prefix}.per_layer_input_gate", hidden, size)
    return LayerEnd(gate, load_linear(weights, f"{prefix}.per_layer_projection", size, hidden), norm, scale)

"""A decoder-only language model, composed of the parts in which the families differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.layers.linear import Linear, Projection, gathered, load_linear
from baton.engine.layers.moe import MoE
from baton.engine.layers.norm import RMSNorm
from baton.engine.layers.rotary import RotaryEmbedding
from baton.engine.ops.base import Rotation
from baton.engine.parallel.tensor_parallel import TensorRanks


class Embedding:
    """Token embeddings; the rows of the vocabulary are divided among ranks."""

    def __init__(self, weight: Tensor, tensor: TensorRanks, vocab_size: int) -> None:
        self.weight = weight  # [this rank's part of the vocabulary, hidden]
        self.tensor = tensor
        self.first = tensor.shard.of(vocab_size).start

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [num_tokens, hidden] of token_ids [num_tokens]."""
        if self.tensor.shard.size == 1:
            return F.embedding(token_ids, self.weight)
        ours = token_ids - self.first
        is_elsewhere = (ours < 0) | (ours >= len(self.weight))
        vectors = F.embedding(ours.masked_fill_(is_elsewhere, 0), self.weight)
        return self.tensor.sum(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))


class Attention(Protocol):
    """Attention of one layer."""

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention output for x [num_tokens, hidden], in the same shape."""
        ...


# MLP or mixture of experts: [num_tokens, hidden] to the same shape.
FeedForward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each after a norm and with a residual connection."""

    attention_norm: RMSNorm
    attention: Attention
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward

    def __call__(
        self, x: Tensor, addend: Tensor | None, rotation: Rotation, layer_cache: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Compute the layer. Returns the residual stream and the addend for it, both [num_tokens, hidden].

        x: residual stream; addend: output of the previous layer, not added yet. Both may be overwritten. The next norm
        fuses the addition.
        """
        x, normed = self.attention_norm.add(x, addend)
        x, normed = self.feed_forward_norm.add(x, self.attention(normed, rotation, layer_cache, batch))
        return x, self.feed_forward(normed)


class CausalLM:
    """Decoder-only model: tokens in, logits of the wanted positions out; writes KV to the pool."""

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: Projection,
        rotary: RotaryEmbedding,
        backend: AttentionBackend,
    ) -> None:
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head
        self.rotary = rotary
        self.backend = backend

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """Compute one step. Returns logits [num_logits, vocab] in fp32; pool: see KVCacheLayout, updated in place.

        Tensor-parallel ranks compute the same steps; rank 0 gets all the logits.
        """
        batch = batch.on(pool.device)
        self.backend.plan(batch)
        return self.compute(batch, pool)

    @torch.inference_mode()
    def compute(self, batch: Batch, pool: Tensor) -> Tensor:
        """Compute a step whose attention is planned and whose batch is on the model's device; see `forward`."""
        x = self.embedding(batch.token_ids)  # [num_tokens, hidden]
        addend = None
        rotation = self.rotary.at(batch.positions)
        for index, layer in enumerate(self.layers):
            x, addend = layer(x, addend, rotation, KVCacheLayout.layer_cache(pool, index), batch)
        wanted = batch.logits_indices
        _, normed = self.norm.add(x[wanted], None if addend is None else addend[wanted])
        return self.head(normed).float()

    @torch.inference_mode()
    def forward_idle(self) -> None:
        """Take part in a step without tokens on this rank: compute its experts for the other ranks."""
        nothing = self.embedding.weight[:0]
        for layer in self.layers:
            if isinstance(layer.feed_forward, MoE):
                layer.feed_forward(nothing)


def load_causal_lm(
    weights: Weights,
    config: ModelConfig,
    backend: AttentionBackend,
    tensor: TensorRanks,
    load_attention: Callable[[str], Attention],
    load_feed_forward: Callable[[int, str], FeedForward],
) -> CausalLM:
    """Load a model, given loaders for attention (by tensor prefix) and feed-forward (by layer and tensor prefix)."""

    def norm(name: str) -> RMSNorm:
        return RMSNorm(weights.take(f"{name}.weight", config.hidden_size), config.rms_norm_eps)

    def layer(index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}"
        return DecoderLayer(
            norm(f"{prefix}.input_layernorm"),
            load_attention(f"{prefix}.self_attn"),
            norm(f"{prefix}.post_attention_layernorm"),
            load_feed_forward(index, prefix),
        )

    rows = tensor.shard.of(config.vocab_size)
    embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size, part=(rows,))
    layers = [layer(index) for index in range(config.num_layers)]
    if config.tie_word_embeddings:
        head = Linear(embedding, quantization=weights.quantization)
    else:
        head = load_linear(weights, "lm_head", config.hidden_size, config.vocab_size, rows=rows)
    return CausalLM(
        Embedding(embedding, tensor, config.vocab_size),
        layers,
        norm("model.norm"),
        gathered(head, tensor),
        RotaryEmbedding(config.rope, config.max_model_len, weights.device),
        backend,
    )

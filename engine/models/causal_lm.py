"""A decoder-only language model, put together from the parts in which the families differ."""

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
    """The vectors of the vocabulary, whose rows are divided among ranks."""

    def __init__(self, weight: Tensor, tensor: TensorRanks, vocab_size: int) -> None:
        self.weight = weight  # [our part of the vocabulary, hidden]
        self.tensor = tensor
        self.first = tensor.shard.of(vocab_size).start

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids: [num_tokens]. Returns [num_tokens, hidden]."""
        if self.tensor.shard.size == 1:
            return F.embedding(token_ids, self.weight)
        ours = token_ids - self.first
        is_elsewhere = (ours < 0) | (ours >= len(self.weight))
        vectors = F.embedding(ours.masked_fill_(is_elsewhere, 0), self.weight)
        return self.tensor.sum(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))


class Attention(Protocol):
    """The attention of a layer."""

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """x: [num_tokens, hidden]. Returns the same shape."""
        ...


# What stands between two attentions, an MLP or a mixture of experts: [num_tokens, hidden] to the same shape.
FeedForward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each after a norm and beside a residual."""

    attention_norm: RMSNorm
    attention: Attention
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward

    def __call__(
        self, x: Tensor, addend: Tensor | None, rotation: Rotation, layer_cache: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """x: [num_tokens, hidden]; addend: of the same shape, what the layer before adds to it; both ours to change.

        Returns both again: whoever norms their sum next adds them up on the way.
        """
        x, normed = self.attention_norm.add(x, addend)
        x, normed = self.feed_forward_norm.add(x, self.attention(normed, rotation, layer_cache, batch))
        return x, self.feed_forward(normed)


class CausalLM:
    """Tokens in, logits of the wanted positions out; KV goes to the pool."""

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
        """One step. pool: as KVCacheLayout shapes it, updated in place. Returns [num_logits, vocab] in fp32.

        Ranks that have the model together compute the same steps; the first one gets the logits.
        """
        batch = batch.on(pool.device)
        self.backend.plan(batch)
        return self.compute(batch, pool)

    @torch.inference_mode()
    def compute(self, batch: Batch, pool: Tensor) -> Tensor:
        """A step that is planned, of a batch on the model's device; see forward."""
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
        """A step of the group in which this rank has no tokens: computes its experts for the others."""
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
    """The model around attentions (by tensor prefix) and feed-forwards (by layer and tensor prefix)."""

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

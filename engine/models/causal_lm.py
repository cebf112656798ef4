"""A decoder-only language model, composed of the parts in which the families differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.checkpoint.packed.stored_layout import PackedMatrix
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch, PooledOutput
from baton.engine.execution.device import to_device_async
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.layers.grouped_weight import GroupedWeight
from baton.engine.layers.linear import Linear, Projection, gathered, head_quantization, load_head
from baton.engine.layers.moe import MoE
from baton.engine.layers.norm import RMSNorm
from baton.engine.layers.rotary import RotaryEmbedding
from baton.engine.ops.base import Rotation
from baton.engine.parallel.tensor_parallel import TensorRanks


class Embedding:
    """Token embeddings; the rows of the vocabulary are divided among ranks."""

    def __init__(
        self, weight: Tensor | GroupedMatrix, tensor: TensorRanks, vocab_size: int, dtype: torch.dtype
    ) -> None:
        """weight: [this rank's part of the vocabulary, hidden]; dtype: of the vectors."""
        self.weight = weight
        self.tensor = tensor
        self.vocab = tensor.shard.of(vocab_size)
        self.dtype = dtype

    def nothing(self) -> Tensor:
        """Return the embeddings of no tokens, [0, hidden]."""
        return self._rows(torch.empty(0, dtype=torch.int64, device=self.device))

    @property
    def device(self) -> torch.device:
        """Device of the weight."""
        return self.weight.device if isinstance(self.weight, Tensor) else self.weight.low.device

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [num_tokens, hidden] of token_ids [num_tokens]."""
        if self.tensor.shard.size == 1:
            return self._rows(token_ids)
        ours = token_ids - self.vocab.start
        is_elsewhere = (ours < 0) | (token_ids >= self.vocab.stop)
        vectors = self._rows(ours.masked_fill_(is_elsewhere, 0))
        return self.tensor.sum(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))

    def _rows(self, indices: Tensor) -> Tensor:
        if isinstance(self.weight, Tensor):
            return F.embedding(indices, self.weight)
        return self.weight.dequantised(indices, self.dtype)


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


class MissingHead:
    """Output layer of a checkpoint that has none: an embedding model, which cannot generate."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, x: Tensor) -> Tensor:
        """Return zeros [num_tokens, vocab] for x [num_tokens, hidden]; memory measurements need a result."""
        return x.new_zeros(len(x), self.vocab_size)


SLICE_ROWS = 1024  # hidden states that are summed at once


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
    def forward_pooled(self, batch: Batch, pool: Tensor) -> PooledOutput:
        """Compute one step like `forward`, and sum the final hidden states of the tokens in `batch.pooled`.

        The sums of tensor-parallel ranks are equal, as their residual streams are.
        """
        batch = batch.on(pool.device)
        self.backend.plan(batch)
        x, addend = self._residuals(batch, pool)
        sums = self._sums(x, addend, batch.pooled)  # first: it copies what it reads
        return PooledOutput(self._logits(x, addend, batch.logits_indices), sums)

    @torch.inference_mode()
    def compute(self, batch: Batch, pool: Tensor) -> Tensor:
        """Compute a step whose attention is planned and whose batch is on the model's device; see `forward`."""
        x, addend = self._residuals(batch, pool)
        return self._logits(x, addend, batch.logits_indices)

    @property
    def has_head(self) -> bool:
        """Whether the checkpoint has an output layer, so that the model can generate."""
        return not isinstance(self.head, MissingHead)

    def _residuals(self, batch: Batch, pool: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after the last layer and the addend for it, both [num_tokens, hidden]."""
        x = self.embedding(batch.token_ids)  # [num_tokens, hidden]
        addend = None
        rotation = self.rotary.at(batch.positions)
        for index, layer in enumerate(self.layers):
            x, addend = layer(x, addend, rotation, KVCacheLayout.layer_cache(pool, index), batch)
        return x, addend

    def _logits(self, x: Tensor, addend: Tensor | None, wanted: Tensor) -> Tensor:
        return self.head(self._normed(x, addend, wanted)).float()

    def _normed(self, x: Tensor, addend: Tensor | None, wanted: Tensor) -> Tensor:
        """Return the final hidden states [num_wanted, hidden] of the tokens `wanted`; the inputs stay as they are."""
        return self.norm.add(x[wanted], None if addend is None else addend[wanted])[1]

    def _sums(self, x: Tensor, addend: Tensor | None, ranges: Sequence[range]) -> Tensor:
        """Return the sum of each range's final hidden states: [len(ranges), hidden] float64.

        Sums in float64 are the same however a prompt is divided into chunks, but for roundings far below float32's.
        """
        firsts = to_device_async(torch.tensor([each.start for each in ranges]), x.device)
        sums = self._normed(x, addend, firsts).double()
        for row, each in enumerate(ranges):
            for start in range(each.start + 1, each.stop, SLICE_ROWS):
                rest = torch.arange(start, min(start + SLICE_ROWS, each.stop), device=x.device)
                sums[row] += self._normed(x, addend, rest).double().sum(0)
        return sums

    @torch.inference_mode()
    def forward_idle(self) -> None:
        """Take part in a step without tokens on this rank: compute its experts for the other ranks."""
        nothing = self.embedding.nothing()
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
    embedding = _load_embedding(weights, config, rows)
    layers = [layer(index) for index in range(config.num_layers)]
    if config.tie_word_embeddings:
        table = embedding if isinstance(embedding, Tensor) else GroupedWeight(embedding, weights.dtype)
        head = gathered(Linear(table, quantization=head_quantization(weights.quantization)), tensor)
    elif config.may_lack_head and "lm_head.weight" not in weights:
        head = MissingHead(config.vocab_size)
    else:
        head = gathered(load_head(weights, config.hidden_size, config.vocab_size, rows), tensor)
    return CausalLM(
        Embedding(embedding, tensor, config.vocab_size, weights.dtype),
        layers,
        norm("model.norm"),
        head,
        RotaryEmbedding(config.rope, config.max_model_len, weights.device),
        backend,
    )


def _load_embedding(weights: Weights, config: ModelConfig, rows: slice) -> Tensor | GroupedMatrix:
    """Load some rows of the embedding; a packed one stays packed, unless the output layer is to become int8."""
    name, shape = "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
    stored = weights.peek(name, *shape, part=(rows,))
    if isinstance(stored, PackedMatrix) and weights.quantization != "int8":
        return stored.read().to(weights.device)
    return weights.take(name, *shape, part=(rows,))

"""Sparse attention of DeepSeek-V3.2: an indexer chooses the tokens that a token attends to.

https://github.com/deepseek-ai/DeepSeek-V3.2-Exp, section 2 of its report. A token attends to the `topk` tokens with the
highest scores, the sum over the indexer's heads of weight * relu(query * key). The indexer's keys, one for each token,
follow the latents in the KV blocks.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.execution.device import to_device_async
from baton.engine.layers.linear import Linear, load_linear
from baton.engine.mla import IndexerConfig, MLAConfig
from baton.engine.ops.base import Rotation
from baton.engine.ops.factory import ops_for

NORM_EPS = 1e-6
ROWS = 16  # tokens that are computed at once: each has `topk` latents and scores of the whole context


@dataclass(frozen=True, slots=True)
class Indexer:
    """Projections to the indexer's queries, keys and weights of heads; the same on all ranks."""

    config: IndexerConfig
    query: Linear
    key: Linear
    key_norm: tuple[Tensor, Tensor]  # weight and bias
    head_weights: Linear

    def write(self, x: Tensor, rotation: Rotation, cache: Tensor, batch: Batch) -> None:
        """Write the keys of x [num_tokens, hidden] to cache [num_blocks, block_size, head_dim]."""
        keys = F.layer_norm(self.key(x), (self.config.head_dim,), *self.key_norm, NORM_EPS)
        slots, block_size = batch.slot_mapping, cache.shape[1]
        cache.index_put_((slots // block_size, slots % block_size), _rotated(keys.unsqueeze(1), rotation).squeeze(1))

    def queries(self, x: Tensor, compressed: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Return queries [num_tokens, num_heads, head_dim] and weights [num_tokens, num_heads], both fp32.

        compressed: the compressed queries of the attention, [num_tokens, q_lora_rank].
        """
        config = self.config
        queries = self.query(compressed).view(len(x), config.num_heads, config.head_dim)
        weights = self.head_weights(x).float() * (config.num_heads * config.head_dim) ** -0.5
        return _rotated(queries, rotation).float(), weights

    def choose(self, queries: Tensor, weights: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Return the chosen tokens of each query, [num_queries, topk] int64.

        keys: [context, head_dim] fp32; positions: [num_queries], each at least `topk`, so that there are enough tokens.
        """
        scores = (weights.unsqueeze(1) @ (queries @ keys.T).relu_()).squeeze(1)  # [num_queries, context]
        is_later = torch.arange(len(keys), device=keys.device) > positions.unsqueeze(1)
        return scores.masked_fill_(is_later, -torch.inf).topk(self.config.topk, dim=-1).indices


def attend_sparsely(
    indexer: Indexer,
    attended: Tensor,
    q: Tensor,
    index: tuple[Tensor, Tensor],
    layer_cache: Tensor,
    batch: Batch,
    scale: float,
) -> None:
    """Replace the rows of `attended` whose tokens have more than `topk` tokens in their context.

    attended: [num_tokens, num_heads, kv_lora_rank]; q: [num_tokens, num_heads, latent_dim]; index: the indexer's
    queries and weights; layer_cache: [num_blocks, block_size, row_dim], with the new tokens' latents and keys.
    """
    topk, latent_dim, rank = indexer.config.topk, q.shape[2], attended.shape[2]
    end = 0
    for seq, (query_len, context_len) in enumerate(zip(batch.query_lens_list, batch.context_lens_list, strict=True)):
        start, end = end, end + query_len
        first = max(start, end - (context_len - topk))  # the first token with more than `topk` in its context
        if first >= end:
            continue
        blocks = batch.block_tables[seq, : -(-context_len // layer_cache.shape[1])]
        rows = layer_cache[to_device_async(blocks, layer_cache.device)].flatten(0, 1)[:context_len]
        latents, keys = rows[:, :latent_dim], rows[:, latent_dim:].float()
        for low in range(first, end, ROWS):
            here = slice(low, min(low + ROWS, end))
            chosen = latents[indexer.choose(index[0][here], index[1][here], keys, batch.positions[here])]
            scores = (q[here] @ chosen.mT).float() * scale  # [num_queries, num_heads, topk]
            attended[here] = scores.softmax(-1).to(q.dtype) @ chosen[..., :rank]


def load_indexer(weights: Weights, prefix: str, config: ModelConfig, mla: MLAConfig) -> Indexer | None:
    """Load the indexer of the attention `prefix`; None if the model has none."""
    indexer, hidden = mla.indexer, config.hidden_size
    if indexer is None:
        return None
    assert mla.q_lora_rank is not None, "an indexer reads compressed queries"
    name = f"{prefix}.indexer"
    norm = [weights.take(f"{name}.k_norm.{part}", indexer.head_dim) for part in ("weight", "bias")]
    return Indexer(
        indexer,
        load_linear(weights, f"{name}.wq_b", mla.q_lora_rank, indexer.num_heads * indexer.head_dim),
        load_linear(weights, f"{name}.wk", hidden, indexer.head_dim),
        (norm[0], norm[1]),
        load_linear(weights, f"{name}.weights_proj", hidden, indexer.num_heads),
    )


def _rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the first dimensions of heads; their pairs are halves, unlike those of the attention."""
    return ops_for(heads.device).rotate(heads, Rotation(rotation.table, rotation.positions, interleaved=False))

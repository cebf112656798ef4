"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.layers.head_linear import HeadLinear
from baton.engine.layers.indexer import Indexer, attend_sparsely, load_indexer
from baton.engine.layers.linear import Linear, Projection, load_linear, load_partial, summed
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.layers.norm import RMSNorm
from baton.engine.mla import MLAConfig
from baton.engine.ops.base import Rotation
from baton.engine.ops.factory import ops_for
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard

NORM_EPS = 1e-6  # for the norms inside the attention; the config's eps is for the layer norms


@dataclass(frozen=True, slots=True)
class QueryProjection:
    """Projection of hidden states to queries, direct or low-rank."""

    up: Linear
    down: Linear | None = None
    norm: RMSNorm | None = None

    def compressed(self, x: Tensor) -> Tensor:
        """Return the input of `up` for x [num_tokens, hidden]: [num_tokens, q_lora_rank], or x itself."""
        return x if self.down is None or self.norm is None else self.norm(self.down(x))


class LatentAttention:
    """Latent attention; the cache holds a token's compressed KV and one rotary key for all heads.

    Queries are projected into the latent space and outputs out of it, so that keys and values are never expanded.
    """

    def __init__(
        self,
        mla: MLAConfig,
        query: QueryProjection,
        compress: Linear,
        latent_norm: RMSNorm,
        keys: HeadLinear,
        values: HeadLinear,
        output: Projection,
        backend: AttentionBackend,
        indexer: Indexer | None = None,
        scale: float = 1.0,
    ) -> None:
        """keys: from qk_nope_head_dim to kv_lora_rank; values: from kv_lora_rank to v_head_dim; both of `kv_b_proj`.

        scale: factor on the scores of sparse attention.
        """
        self.mla = mla
        self.query = query
        self.compress = compress
        self.latent_norm = latent_norm
        self.keys = keys
        self.values = values
        self.output = output
        self.backend = backend
        self.indexer = indexer
        self.scale = scale

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention output for x [num_tokens, hidden], in the same shape; layer_cache: see the backend."""
        mla, ops = self.mla, ops_for(x.device)
        queries = self.query.compressed(x)
        q = self.query.up(queries).view(x.shape[0], -1, mla.qk_head_dim)
        q_plain, q_rope = q.split_with_sizes([mla.qk_nope_head_dim, mla.qk_rope_head_dim], dim=-1)
        compressed, k_rope = self.compress(x).split_with_sizes([mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
        latent = torch.cat([self.latent_norm(compressed), ops.rotate(k_rope.unsqueeze(1), rotation).squeeze(1)], dim=-1)
        absorbed = torch.cat([self.keys(q_plain), ops.rotate(q_rope, rotation)], dim=-1)
        latents = layer_cache if self.indexer is None else layer_cache[..., : mla.latent_dim]
        attended = self.backend.forward_latent(absorbed, latent, latents, batch)
        if self.indexer is not None:
            self.indexer.write(x, rotation, layer_cache[..., mla.latent_dim :], batch)
            if max(batch.context_lens_list, default=0) > self.indexer.config.topk:
                index = self.indexer.queries(x, queries, rotation)
                attend_sparsely(self.indexer, attended, absorbed, index, layer_cache, batch, self.scale)
        return self.output(self.values(attended).flatten(1))


def load_latent_attention(
    weights: Weights, prefix: str, config: ModelConfig, backend: AttentionBackend, tensor: TensorRanks
) -> LatentAttention:
    """Load the attention with the tensors `prefix`.kv_a_proj_with_mqa etc.

    Its heads are divided among ranks; the latent, which all heads share, is computed and cached on every rank.
    """
    mla, shard, num_heads = config.mla, tensor.shard, config.num_heads
    assert mla is not None, "the config has no MLA"
    hidden, bias, v_size = config.hidden_size, config.attention_output_bias, num_heads * mla.v_head_dim
    v_columns = shard.of(num_heads, mla.v_head_dim)
    output = load_partial(weights, f"{prefix}.o_proj", v_size, hidden, v_columns, shard, bias=bias)
    return LatentAttention(
        mla,
        _load_query(weights, prefix, config, mla, shard),
        load_linear(weights, f"{prefix}.kv_a_proj_with_mqa", hidden, mla.latent_dim, bias=bias),
        RMSNorm(weights.take(f"{prefix}.kv_a_layernorm.weight", mla.kv_lora_rank), NORM_EPS),
        *_load_expansion(weights, f"{prefix}.kv_b_proj", num_heads, mla, shard),
        summed(output, tensor),
        backend,
        load_indexer(weights, prefix, config, mla),
        config.attention_scale,
    )


def _load_expansion(
    weights: Weights, name: str, num_heads: int, mla: MLAConfig, shard: TensorShard
) -> tuple[HeadLinear, HeadLinear]:
    """Load the products with the rows of keys and with those of values, in place of the expansion of latents."""
    nope, size = mla.qk_nope_head_dim, mla.qk_nope_head_dim + mla.v_head_dim  # rows of a head
    part = (shard.of(num_heads, size),)
    expand = weights.take(f"{name}.weight", num_heads * size, mla.kv_lora_rank, part=part)
    heads = expand.view(-1, size, mla.kv_lora_rank)

    def source(first: int, last: int) -> LinearSource:
        starts = range(0, num_heads * size, size)[shard.of(num_heads)]
        rows = [ProjectionRows(name, num_heads * size, slice(start + first, start + last)) for start in starts]
        return LinearSource(rows, mla.kv_lora_rank, slice(None))

    keys = HeadLinear(heads[:, :nope].contiguous(), source(0, nope), is_transposed=True)
    return keys, HeadLinear(heads[:, nope:].mT.contiguous(), source(nope, size))


def _load_query(
    weights: Weights, prefix: str, config: ModelConfig, mla: MLAConfig, shard: TensorShard
) -> QueryProjection:
    size, rows = config.num_heads * mla.qk_head_dim, shard.of(config.num_heads, mla.qk_head_dim)
    if mla.q_lora_rank is None:
        return QueryProjection(load_linear(weights, f"{prefix}.q_proj", config.hidden_size, size, rows=rows))
    return QueryProjection(
        load_linear(weights, f"{prefix}.q_b_proj", mla.q_lora_rank, size, rows=rows),
        load_linear(weights, f"{prefix}.q_a_proj", config.hidden_size, mla.q_lora_rank, bias=config.qkv_bias),
        RMSNorm(weights.take(f"{prefix}.q_a_layernorm.weight", mla.q_lora_rank), NORM_EPS),
    )

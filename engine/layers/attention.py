"""Multi-head and grouped-query attention (arXiv 2305.13245)."""

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.scales import KVScales, load_kv_scales
from baton.engine.layers.linear import Linear, Projection, load_fused, load_partial, summed
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.factory import ops_for
from baton.engine.parallel.tensor_parallel import TensorRanks


class GroupedQueryAttention:
    """Projections, optional norms of queries and keys (Qwen3), rotation, and the backend's attention."""

    def __init__(
        self,
        config: ModelConfig,
        qkv: Linear,
        output: Projection,
        norms: HeadNorms | None,
        scales: KVScales,
        backend: AttentionBackend,
    ) -> None:
        """config: with this rank's heads only; norms: of queries and keys; scales: of FP8 KV."""
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.qkv = qkv
        self.output = output
        self.norms = norms
        self.scales = scales
        self.backend = backend

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention output for x [num_tokens, hidden], in the same shape; layer_cache: see the backend."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        qk, v = heads.split_with_sizes([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        qk = ops_for(x.device).rotate(qk, rotation, self.norms)
        q, k = qk.split_with_sizes([self.num_heads, self.num_kv_heads], dim=1)
        attended = self.backend.forward(q, k, v, layer_cache, batch, self.scales)
        return self.output(attended.flatten(1))


def load_attention(
    weights: Weights, prefix: str, config: ModelConfig, backend: AttentionBackend, tensor: TensorRanks
) -> GroupedQueryAttention:
    """Load this rank's heads of the attention with the tensors `prefix`.q_proj etc."""
    shard, hidden, head_dim = tensor.shard, config.hidden_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    q_rows, kv_rows = shard.of(config.num_heads, head_dim), shard.of(config.num_kv_heads, head_dim)
    names = [f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj")]
    sizes, rows = [q_size, kv_size, kv_size], [q_rows, kv_rows, kv_rows]
    qkv = load_fused(weights, names, hidden, sizes, bias=config.qkv_bias, rows=rows)
    bias = config.attention_output_bias
    output = load_partial(weights, f"{prefix}.o_proj", q_size, hidden, q_rows, shard, bias=bias)
    local = shard.local(config)
    norms = _load_norms(weights, prefix, local) if config.qk_norm else None
    return GroupedQueryAttention(local, qkv, summed(output, tensor), norms, load_kv_scales(weights, prefix), backend)


def _load_norms(weights: Weights, prefix: str, config: ModelConfig) -> HeadNorms:
    """Load the norms of this rank's heads, queries first."""
    counts = (config.num_heads, config.num_kv_heads)
    rows = [weights.take(f"{prefix}.{name}.weight", config.head_dim) for name in ("q_norm", "k_norm")]
    weight = torch.cat([row.repeat(count, 1) for row, count in zip(rows, counts, strict=True)])
    return HeadNorms(weight, counts, config.rms_norm_eps)

"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend
from engine.batch import Batch
from engine.config import MLAConfig, ModelConfig
from engine.layers.linear import Linear, load_linear
from engine.layers.norm import RMSNorm
from engine.layers.rotary import Rotation
from engine.weights import Weights

NORM_EPS = 1e-6  # of the norms inside; the config's is for those outside


@dataclass(frozen=True, slots=True)
class QueryProjection:
    """Hidden states to queries, in one step or through a low rank."""

    up: Linear
    down: Linear | None = None
    norm: RMSNorm | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden]. Returns [num_tokens, num_heads * qk_head_dim]."""
        if self.down is None or self.norm is None:
            return self.up(x)
        return self.up(self.norm(self.down(x)))


class LatentAttention:
    """The cache holds a token's compressed KV and one rotated key for all heads.

    Queries are brought into the latent space, and what they attend to is brought out of it, so that keys and values
    are never expanded.
    """

    def __init__(
        self,
        mla: MLAConfig,
        query: QueryProjection,
        compress: Linear,
        latent_norm: RMSNorm,
        expand: Tensor,
        output: Linear,
        backend: AttentionBackend,
    ) -> None:
        """expand: [num_heads, qk_nope_head_dim + v_head_dim, kv_lora_rank], the weight of `kv_b_proj`."""
        self.mla = mla
        self.query = query
        self.compress = compress
        self.latent_norm = latent_norm
        self.key_expand = expand[:, : mla.qk_nope_head_dim].contiguous()  # [num_heads, qk_nope_head_dim, kv_lora_rank]
        self.value_expand = expand[:, mla.qk_nope_head_dim :].mT.contiguous()  # [num_heads, kv_lora_rank, v_head_dim]
        self.output = output
        self.backend = backend

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """x: [num_tokens, hidden]; layer_cache as the backend has it. Returns the shape of x."""
        mla = self.mla
        q = self.query(x).view(x.shape[0], -1, mla.qk_head_dim)
        q_plain, q_rope = q.split_with_sizes([mla.qk_nope_head_dim, mla.qk_rope_head_dim], dim=-1)
        compressed, k_rope = self.compress(x).split_with_sizes([mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
        latent = torch.cat([self.latent_norm(compressed), rotation(k_rope.unsqueeze(1)).squeeze(1)], dim=-1)
        q_latent = torch.bmm(q_plain.transpose(0, 1), self.key_expand).transpose(0, 1)  # [num_tokens, heads, lora]
        absorbed = torch.cat([q_latent, rotation(q_rope)], dim=-1)
        attended = self.backend.forward_latent(absorbed, latent, layer_cache, batch)
        values = torch.bmm(attended.transpose(0, 1), self.value_expand)  # [num_heads, num_tokens, v_head_dim]
        return self.output(values.transpose(0, 1).flatten(1))


def load_latent_attention(
    weights: Weights, prefix: str, config: ModelConfig, backend: AttentionBackend
) -> LatentAttention:
    """The attention whose tensors are `prefix`.kv_a_proj_with_mqa and so on."""
    mla = config.mla
    assert mla is not None, "only a config with MLA comes here"
    hidden, bias = config.hidden_size, config.attention_output_bias
    expand = weights.take(
        f"{prefix}.kv_b_proj.weight",
        config.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim),
        mla.kv_lora_rank,
    )
    return LatentAttention(
        mla,
        _load_query(weights, prefix, config, mla),
        load_linear(weights, f"{prefix}.kv_a_proj_with_mqa", hidden, mla.latent_dim, bias=bias),
        RMSNorm(weights.take(f"{prefix}.kv_a_layernorm.weight", mla.kv_lora_rank), NORM_EPS),
        expand.view(config.num_heads, -1, mla.kv_lora_rank),
        load_linear(weights, f"{prefix}.o_proj", config.num_heads * mla.v_head_dim, hidden, bias=bias),
        backend,
    )


def _load_query(weights: Weights, prefix: str, config: ModelConfig, mla: MLAConfig) -> QueryProjection:
    size = config.num_heads * mla.qk_head_dim
    if mla.q_lora_rank is None:
        return QueryProjection(load_linear(weights, f"{prefix}.q_proj", config.hidden_size, size))
    return QueryProjection(
        load_linear(weights, f"{prefix}.q_b_proj", mla.q_lora_rank, size),
        load_linear(weights, f"{prefix}.q_a_proj", config.hidden_size, mla.q_lora_rank, bias=config.qkv_bias),
        RMSNorm(weights.take(f"{prefix}.q_a_layernorm.weight", mla.q_lora_rank), NORM_EPS),
    )

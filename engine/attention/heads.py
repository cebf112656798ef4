"""Head counts, widths and dtypes of a model's attention."""

from dataclasses import dataclass

import torch

from baton.engine.config import ModelConfig
from baton.engine.kv.dtype import SCALE_BYTES
from baton.engine.kv.layout import torch_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHeads:
    """Attention heads on this rank, and the layout of their cached KV."""

    num_heads: int
    num_kv_heads: int
    key_width: int
    value_width: int  # with MLA less than key_width: values are the keys' first columns
    dtype: torch.dtype  # of queries, new KV and results
    kv_dtype: torch.dtype | None = None  # of the cached KV, if different

    @property
    def cached_dtype(self) -> torch.dtype:
        """Dtype of the cached KV."""
        return self.kv_dtype or self.dtype

    @property
    def is_quantised(self) -> bool:
        """Whether the cached KV is int8."""
        return self.kv_dtype == torch.int8

    @property
    def row_items(self) -> int:
        """Number of items in a cached row, including its scale if it has one."""
        return self.key_width + SCALE_BYTES * self.is_quantised

    @classmethod
    def of(cls, config: ModelConfig, kv_dtype: torch.dtype | None = None) -> "AttentionHeads":
        """Return the heads of a model; with MLA, one latent head serves all queries."""
        mla, dtype = config.mla, torch_dtype(config.dtype)
        return cls(
            num_heads=config.num_heads,
            num_kv_heads=1 if mla else config.num_kv_heads,
            key_width=mla.latent_dim if mla else config.head_dim,
            value_width=mla.kv_lora_rank if mla else config.head_dim,
            dtype=dtype,
            kv_dtype=kv_dtype,
        )

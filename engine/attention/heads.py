"""Head counts, widths and dtypes of a model's attention."""

from dataclasses import dataclass

import torch

from baton.engine.attention import int4_rows
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
        """Whether the cached KV is int8 or int4, with a scale for each row."""
        return self.kv_dtype == torch.int8 or self.is_int4

    @property
    def is_int4(self) -> bool:
        """Whether the cached KV is int4, two elements in each of its bytes."""
        return self.kv_dtype == int4_rows.DTYPE

    @property
    def row_items(self) -> int:
        """Number of items in a cached row, including its scale if it has one."""
        num_elements = self.key_width // 2 if self.is_int4 else self.key_width
        return num_elements + SCALE_BYTES * self.is_quantised

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

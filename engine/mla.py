"""Sizes of multi-head latent attention: plain data, no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """Lightning indexer (DeepSeek-V3.2): it chooses the tokens that a token attends to."""

    num_heads: int
    head_dim: int
    topk: int  # tokens that are attended to, if the context has more


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-V2)."""

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: IndexerConfig | None = None  # None: a token attends to the whole context

    @property
    def qk_head_dim(self) -> int:
        """Width of a query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of a token's latent: the compressed KV and the rotary key shared by all heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def row_dim(self) -> int:
        """Width of a token's cache entry: its latent, and its key for the indexer."""
        return self.latent_dim + (self.indexer.head_dim if self.indexer is not None else 0)

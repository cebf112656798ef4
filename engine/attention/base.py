"""Interface of attention backends."""

from typing import Protocol

from torch import Tensor

from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.execution.batch import Batch
from baton.engine.kv.scales import UNSCALED, KVScales


class AttentionBackend(Protocol):
    """Causal attention over paged KV for multi-head, grouped-query (MHA/GQA) and latent (MLA) layers.

    Causality is aligned to the end: in a sequence with `q` new tokens and context length `c`, new token `i` attends to
    the first `c - q + i + 1` tokens, or to those of them in the layer's span. Each call first writes the new tokens' KV
    to their slots, unless it is there: an earlier layer, whose KV the layer shares, or `kv_append` has written it.
    """

    def plan(self, batch: Batch) -> None:
        """Prepare for a step; called once before the layers."""
        ...

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_cache: Tensor,
        batch: Batch,
        scales: KVScales = UNSCALED,
        kind: AttentionKind = PLAIN,
    ) -> Tensor:
        """Return the attention of one layer, [num_tokens, num_heads, head_dim].

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim], no heads if their KV is there;
        layer_cache: [num_blocks, parts, 2, num_kv_heads / parts, block_size, head_dim], a view of the pool, updated in
        place; in int8 and int4 each row is followed by its scale (engine/kv/layout.py); scales: of FP8 KV; kind:
        the layer's. Scores are multiplied by `scale`, then bounded by `soft_cap`, both given at construction.
        """
        ...

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention of one MLA layer in absorbed form (DeepSeek-V2, section 2.1): one latent for all heads.

        q: [num_tokens, num_heads, kv_lora_rank + rope_dim]; latent: [num_tokens, kv_lora_rank + rope_dim];
        layer_cache: [num_blocks, block_size, kv_lora_rank + rope_dim], updated in place; in int8 as for `forward`.
        Returns [num_tokens, num_heads, kv_lora_rank], to be projected by the value half of `kv_b_proj`.
        """
        ...

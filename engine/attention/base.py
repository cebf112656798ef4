"""What the model asks of an attention implementation."""

from typing import Protocol

from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.kv.scales import UNSCALED, KVScales


class AttentionBackend(Protocol):
    """Causal attention over paged KV for multi-head, grouped-query (MHA/GQA) and latent (MLA) layers.

    Causality is aligned to the end: of a sequence with `q` new tokens and context length `c`, new token `i` sees
    the first `c - q + i + 1` tokens. Each call first writes the new tokens' KV to their slots.
    """

    def plan(self, batch: Batch) -> None:
        """Prepares for a step; called once before the layers."""
        ...

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer_cache: Tensor, batch: Batch, scales: KVScales = UNSCALED
    ) -> Tensor:
        """Attention of one layer.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim];
        layer_cache: [num_blocks, parts, 2, num_kv_heads / parts, block_size, head_dim], a view of the pool, updated;
        in int8 each row has its scale behind it (engine/kv/layout.py); scales: of the layer, for a cache in FP8.
        Returns [num_tokens, num_heads, head_dim]. Scores are scaled by `scale`, given at construction.
        """
        ...

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Attention of one MLA layer in absorbed form (DeepSeek-V2, section 2.1): one latent head serves all queries.

        q: [num_tokens, num_heads, kv_lora_rank + rope_dim]; latent: [num_tokens, kv_lora_rank + rope_dim];
        layer_cache: [num_blocks, block_size, kv_lora_rank + rope_dim], updated in place; as above in int8.
        Returns [num_tokens, num_heads, kv_lora_rank], to be projected by the value half of `kv_b_proj`.
        """
        ...

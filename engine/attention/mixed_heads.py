"""Attention of models whose layers with a window have other KV heads than those without."""

from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.attention.span import FULL
from baton.engine.execution.batch import Batch
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.kv_heads import KVHeads


class MixedHeadsAttention:
    """A backend for each of the two kinds of layers. Each sees its heads in the room that a block has for a layer."""

    def __init__(
        self, whole: AttentionBackend, whole_heads: KVHeads, windowed: AttentionBackend, windowed_heads: KVHeads
    ) -> None:
        """whole: for layers that attend to the whole context; the heads are those of this rank."""
        self._whole = (whole, whole_heads)
        self._windowed = (windowed, windowed_heads)

    def plan(self, batch: Batch) -> None:
        """Prepare both kinds of layers for a step."""
        for backend, _ in (self._whole, self._windowed):
            backend.plan(batch)

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
        """Return the attention of one layer, computed by the backend of its kind."""
        backend, heads = self._whole if kind.span == FULL else self._windowed
        return backend.forward(q, k, v, _view(layer_cache, heads), batch, scales, kind)

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Raise NotImplementedError: the layers of MLA models have equal heads."""
        raise NotImplementedError("MLA with different heads in its layers")


def _view(layer_cache: Tensor, heads: KVHeads) -> Tensor:
    """Return the view of a layer with some heads, in the first elements of each part of its keys and values."""
    num_blocks, num_parts, two, _, block_size, _ = layer_cache.shape
    heads_per_part = max(1, heads.count // num_parts)
    elements = layer_cache.flatten(3)[..., : heads_per_part * block_size * heads.width]
    return elements.view(num_blocks, num_parts, two, heads_per_part, block_size, heads.width)

"""Attention and a recurrent net with the same input (Falcon-H1)."""

from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models.decoder_layer import Attention
from baton.engine.ops.base import Rotation


class ParallelMixers:
    """Sum of the outputs of attention and of a recurrent net."""

    def __init__(self, attention: Attention, net: Attention, kv_place: int, multiplier: float) -> None:
        """kv_place: place of the layer's KV in a block; multiplier: of attention's output."""
        self.attention = attention
        self.net = net
        self.kv_place = kv_place
        self.multiplier = multiplier

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape; layer_cache: the whole KV pool."""
        kv = KVCacheLayout.layer_cache(layer_cache, self.kv_place)
        attended = self.attention(x, rotation, kv, batch) * self.multiplier
        return attended + self.net(x, rotation, layer_cache, batch)

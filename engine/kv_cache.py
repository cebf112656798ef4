"""How KV lies in memory: one tensor for all layers, so that a block is one contiguous region."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """Shape of the block pool: `[num_blocks, num_layers, *layer_shape]`."""

    num_layers: int
    block_size: int  # tokens a block
    layer_shape: tuple[int, ...]  # of one block in one layer
    dtype: torch.dtype

    @classmethod
    def of(cls, config: ModelConfig, block_size: int) -> "KVCacheLayout":
        """A model's layout: `[2, num_kv_heads, block_size, head_dim]` a layer, for MLA `[block_size, latent_dim]`."""
        shape: tuple[int, ...]
        if config.mla is None:
            shape = (2, config.num_kv_heads, block_size, config.head_dim)
        else:
            shape = (block_size, config.mla.latent_dim)
        return cls(config.num_layers, block_size, shape, torch_dtype(config.dtype))

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one block."""
        return (self.num_layers, *self.layer_shape)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        elements = 1
        for size in self.block_shape:
            elements *= size
        return elements * self.dtype.itemsize

    def pool_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Shape of a pool."""
        return (num_blocks, *self.block_shape)

    @staticmethod
    def layer_cache(pool: Tensor, layer: int) -> Tensor:
        """One layer's view of a pool: [num_blocks, *layer_shape]."""
        return pool[:, layer]


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that a config names."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]

"""How KV lies in memory: one tensor for all layers, so that a block is one contiguous region.

A block of a model's KV heads is divided into equal *parts* of some heads, each one contiguous region of its own: ranks
that share the heads hold some parts of every block, and read just these from a rank that holds others as well. How
many parts there are is agreed on by all who exchange blocks, and in their fingerprint. The fewest that the ranks need
are the best for a CPU, which gathers all heads of a layer: smaller regions that lie further apart come more slowly out
of memory. Decode attention over 8 heads of 128 in bf16 takes up to 1.1 times as long with 2 parts as with one, and 1.1
to 1.4 times with 4 or 8; prefill takes the same.

A layer's keys, and likewise its values, are a strided view `[num_blocks, num_kv_heads, block_size, head_dim]` of the
pool wherever a rank holds one part, or each part is one head. FlashInfer's paged wrappers take such a pair of views in
their HND form without a copy: they read the strides of page, head and token from the tensors, require that keys and
values have the same ones, and that the last dimension is contiguous.

KV in int8 has a scale for each row (engine/kv/dtype.py), behind the row's elements in the last dimension. So a block
that is handed over, pulled, checksummed or read by its parts carries its scales, and attention alone knows of them.
Those of KV in FP8 are the layer's, and not in the blocks (engine/kv/scales.py).
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from baton.engine.config import ModelConfig
from baton.engine.kv.dtype import kv_cache_dtype, row_items

LATENT_DIMS = 4  # of a pool for MLA


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """Shape of the block pool: `[num_blocks, *block_shape]`."""

    block_size: int  # tokens a block
    block_shape: tuple[int, ...]
    dtype: torch.dtype
    num_parts: int  # of one of these blocks

    @classmethod
    def of(
        cls, config: ModelConfig, block_size: int, num_parts: int = 1, num_ranks: int = 1, kv_dtype: str = "auto"
    ) -> "KVCacheLayout":
        """The layout of each of `num_ranks` ranks that share a model whose blocks have `num_parts` parts.

        A block is [parts, num_layers, 2, heads of a part, block_size, head_dim]. With MLA, whose latent serves all
        heads, it is [num_layers, block_size, latent_dim] on every rank, and has one part. More ranks than KV heads hold
        them several times. With the `kv_dtype` int8 the last dimension has a scale's four bytes more. Raises ValueError
        for numbers that do not divide each other, UnsupportedModel for a type that the model's KV cannot have.
        """
        named = kv_cache_dtype(config, kv_dtype)
        dtype = torch_dtype(named)
        if config.mla is not None:
            row = row_items(config.mla.latent_dim, named)
            return cls(block_size, (config.num_layers, block_size, row), dtype, 1)
        num_heads = config.num_kv_heads
        if num_parts < 1 or num_heads % num_parts:
            raise ValueError(f"{num_heads} KV heads cannot be divided into {num_parts} equal parts")
        is_replicated = num_parts == num_heads and num_ranks % num_parts == 0
        if num_ranks < 1 or (num_parts % num_ranks and not is_replicated):
            raise ValueError(f"{num_parts} parts of {num_heads} KV heads cannot be divided among {num_ranks} ranks")
        share = max(1, num_parts // num_ranks)
        row = row_items(config.head_dim, named)
        shape = (share, config.num_layers, 2, num_heads // num_parts, block_size, row)
        return cls(block_size, shape, dtype, share)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return prod(self.block_shape) * self.dtype.itemsize

    def pool_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Shape of a pool."""
        return (num_blocks, *self.block_shape)

    @staticmethod
    def layer_cache(pool: Tensor, layer: int) -> Tensor:
        """One layer's view of a pool: its shape without the dimension of the layers."""
        return pool[:, layer] if pool.dim() == LATENT_DIMS else pool[:, :, layer]


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that a config names."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[name]

"""Memory layout of the KV pool: one tensor for all layers, so that a block is one contiguous region.

A block has all layers, or those of one KV group if there are several (engine/kv/groups.py).

A block is divided by KV heads into equal shards ("parts" in the code and in `kv_shards`), each a contiguous region.
Tensor-parallel ranks hold some shards of every block, and can read just these from a rank that holds more. All workers
that exchange blocks must agree on the number of shards, so it is in their fingerprint. On a CPU, which gathers all
heads of a layer, the fewest shards that the ranks need are best: smaller regions further apart are slower to read.
Decode attention over 8 heads of 128 in bf16 takes up to 1.1 times as long with 2 shards as with one, and 1.1 to 1.4
times with 4 or 8; prefill takes the same.

A layer's keys, and likewise its values, are a strided view `[num_blocks, num_kv_heads, block_size, head_dim]` of the
pool if a rank holds one shard, or if each shard is one head. FlashInfer's paged wrappers take such a pair of views in
HND layout without a copy: they read the strides of page, head and token from the tensors, and require that keys and
values have the same strides and that the last dimension is contiguous.

KV in int8 and int4 has a scale per row (engine/kv/dtype.py), after the row's elements in the last dimension. A block
that is handed over, pulled, checksummed or read by shards therefore carries its scales, and only attention interprets
them.
FP8 KV has scales per layer, outside the blocks (engine/kv/scales.py).
"""

from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

from baton.engine.config import ModelConfig
from baton.engine.kv.dtype import STATE_ITEM_BYTES, kv_cache_dtype, row_items
from baton.engine.kv.groups import KVGroups

_TORCH_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "int8": torch.int8,
    "int4": torch.uint8,
    "fp8": torch.float8_e4m3fn,
}
LATENT_DIMS = 4  # dimensions of a pool for MLA
# Blocks of a model without attention: small ones waste little memory on tokens, large ones make short lists of blocks.
STATE_PARTS, MIN_STATE_BLOCK_BYTES, ALIGNMENT = 16, 4096, 64


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """Shape of the block pool: `[num_blocks, *block_shape]`."""

    block_size: int  # tokens per block
    block_shape: tuple[int, ...]
    dtype: torch.dtype
    num_parts: int  # shards per block on this rank

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        block_size: int,
        num_parts: int = 1,
        num_ranks: int = 1,
        kv_dtype: str = "auto",
        groups: KVGroups | None = None,
    ) -> "KVCacheLayout":
        """Return the layout of each of `num_ranks` ranks that share a model whose blocks have `num_parts` shards.

        A block is [shards, num_layers, 2, heads per shard, block_size, head_dim]. With MLA, whose latent serves all
        heads, it is [num_layers, block_size, row_dim] on every rank and has one shard. If there are more ranks than
        KV heads, several ranks hold the same heads. If layers have KV heads of two sizes, each has room for the larger
        ones; layers that share the KV of another have no room. With `kv_dtype` int8 the last dimension is four bytes
        longer, for the scale; with int4 it has the bytes of half as many elements and of the scale. With several
        `groups` a block has the layers of one of them. In a model without attention a block is [shards, items], for
        recurrent state, and those of tokens have no content. Raises ValueError for numbers that do not divide each
        other, UnsupportedModel for a type that the model's KV cannot have.
        """
        named = kv_cache_dtype(config, kv_dtype)
        dtype = torch_dtype(named)
        if not config.kv_layers:
            if num_ranks < 1 or num_parts % num_ranks:
                raise ValueError(f"{num_parts} parts cannot be divided among {num_ranks} ranks")
            share = num_parts // num_ranks
            return cls(block_size, (share, _bytes_without_kv(config, num_parts) // dtype.itemsize), dtype, share)
        num_layers = groups.layers_per_block(config) if groups is not None else len(config.kv_layers)
        if config.mla is not None:
            row = row_items(config.mla.row_dim, named)
            return cls(block_size, (num_layers, block_size, row), dtype, 1)
        num_heads = config.block_heads.count
        for count in (config.num_kv_heads, num_heads if config.whole_heads is None else config.whole_heads.count):
            if num_parts < 1 or count % num_parts:
                raise ValueError(f"{count} KV heads cannot be divided into {num_parts} equal parts")
        is_replicated = num_parts == num_heads and num_ranks % num_parts == 0
        if num_ranks < 1 or (num_parts % num_ranks and not is_replicated):
            raise ValueError(f"{num_parts} parts of {num_heads} KV heads cannot be divided among {num_ranks} ranks")
        share = max(1, num_parts // num_ranks)
        row = row_items(config.block_heads.width, named)
        shape = (share, num_layers, 2, num_heads // num_parts, block_size, row)
        return cls(block_size, shape, dtype, share)

    @property
    def block_bytes(self) -> int:
        """Size of one block in bytes."""
        return prod(self.block_shape) * self.dtype.itemsize

    def pool_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return the shape of a pool of `num_blocks` blocks."""
        return (num_blocks, *self.block_shape)

    @staticmethod
    def layer_cache(pool: Tensor, layer: int) -> Tensor:
        """Return the view of one layer in a pool: its shape lacks the layer dimension.

        layer: the layer's place in a block; see `KVGroups.place`.
        """
        return pool[:, layer] if pool.dim() == LATENT_DIMS else pool[:, :, layer]


def _bytes_without_kv(config: ModelConfig, num_parts: int) -> int:
    """Return the size of a block's shard in a model that has only recurrent state: a part of a layer's state."""
    assert config.recurrent is not None, "a model without attention and recurrent layers"
    part = config.recurrent.part(num_parts).state_size * STATE_ITEM_BYTES / STATE_PARTS
    return max(MIN_STATE_BLOCK_BYTES, ceil(part / ALIGNMENT) * ALIGNMENT)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a config's type name. Raises KeyError for an unknown name."""
    return _TORCH_DTYPES[name]

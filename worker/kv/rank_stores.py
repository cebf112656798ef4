"""The stores of one rank of a worker, and its shards of the blocks in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from baton.engine.kv.block_hash import BlockHash
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.store.pool_blocks import PoolBlocks, rows_of
from baton.kvtransfer.store.store import Key
from baton.kvtransfer.store.stored_read import StoredRead
from baton.worker.kv.stored_keys import shard_keys
from baton.worker.kv.tier import Tier

ONE_RANK = PartGroup(1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Copies of this rank's shards of blocks, each uint8 [shard_bytes], block after block."""

    hashes: Sequence[BlockHash]  # of the blocks
    keys: Sequence[Key]  # of the shards
    copies: Sequence[NDArray[np.uint8]]
    num_shards: int = 1  # of each block


class RankStores:
    """A rank's stores, fastest first, and its pool. Each shard of a block is stored under a key of its own.

    Of ranks that hold the same shards, the first saves them, and all fetch them.
    """

    def __init__(self, pool: Tensor, tiers: Sequence[Tier], parts: PartGroup = ONE_RANK, rank: int = 0) -> None:
        """`parts`: how the worker's ranks divide a block."""
        first = parts.first_part(rank)
        self.tiers = tiers
        self.saves = rank % parts.num_replicas == 0
        self._shards = range(first, first + parts.parts_per_rank)
        self.num_shards = parts.num_parts  # of a block, on all ranks
        self._pool = PoolBlocks(pool, len(self._shards))
        self.block_bytes = len(self._shards) * self._pool.block_bytes

    def first_keys(self, keys: Sequence[Key]) -> list[Key]:
        """Return the key of this rank's first shard of each block, by which blocks are looked up."""
        return shard_keys(keys, self._shards[:1], self.num_shards)

    def read(self, tiers: Sequence[Tier], keys: Sequence[Key], blocks: Sequence[int]) -> StoredRead:
        """Return a read of blocks from the tier of each into the pool."""
        stores = [tier.store for tier in tiers for _ in self._shards]
        shards = shard_keys(keys, self._shards, self.num_shards)
        in_memory = [tier.store for tier in self.tiers if tier.is_memory]
        return StoredRead(self._pool, stores, shards, self._units(blocks), len(self._shards), in_memory)

    def copy(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Return copies of this rank's shards of blocks, [num_blocks * num_shards, shard_bytes]. Blocks."""
        units = self._units(blocks)
        buffer = self._pool.buffer(len(units))
        self._pool.copy_out(units, buffer)
        return rows_of(buffer)

    def batch(
        self,
        keys: Sequence[Key],
        copies: NDArray[np.uint8],
        good: Sequence[int],
        hashes: Sequence[BlockHash] = (),
    ) -> Batch:
        """Return the batch of some blocks. keys: of these; copies: of more, as `copy` returns them; good: their places
        in it.
        """
        count = len(self._shards)
        rows = [copies[index * count + shard] for index in good for shard in range(count)]
        return Batch(hashes, shard_keys(keys, self._shards, self.num_shards), rows, count)

    def _units(self, blocks: Sequence[int]) -> Sequence[int]:
        count = len(self._shards)
        return blocks if count == 1 else [block * count + shard for block in blocks for shard in range(count)]

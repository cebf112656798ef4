"""A read of stored blocks into a pool, by a thread that may be abandoned at any time."""

import threading
import time
from collections.abc import Sequence

from baton.kvtransfer.store.pool_blocks import PoolBlocks, rows_of
from baton.kvtransfer.store.store import Key, KVStore


class StoredRead:
    """Reads blocks in order, each through memory of its own: a store that hangs has no hold on the pool.

    A block is complete and checked before it reaches the pool.
    """

    def __init__(
        self,
        pool: PoolBlocks,
        stores: Sequence[KVStore],
        keys: Sequence[Key],
        blocks: Sequence[int],
        num_shards: int = 1,
    ) -> None:
        """stores, keys, blocks: where each block is stored, under which key, and its number in the pool.

        If blocks have several shards, these are the shards' instead.
        """
        self._pool = pool
        self._sources = list(zip(stores, keys, blocks, strict=True))
        self._num_shards = num_shards
        self._num_in_pool = 0
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.durations_s: list[float] = []  # of the blocks that are in the pool, in order
        self.block_at_s = 0.0  # monotonic clock when the read of the current block began

    def run(self) -> None:
        """Read until the last block, the first that is missing, or `abandon`. Raises StoreUnavailable, TransferFailed.

        Runs on a thread, once.
        """
        buffer = self._pool.buffer(1)
        memory = rows_of(buffer)[0].data
        self.block_at_s = time.monotonic()
        for store, key, block in self._sources:
            if self._is_abandoned or not store.read(key, memory):
                return
            with self._lock:
                if self._is_abandoned:
                    return
                self._pool.copy_in(buffer, 0, block)
                self._num_in_pool += 1
                if self._num_in_pool % self._num_shards == 0:
                    now_s = time.monotonic()
                    self.durations_s.append(now_s - self.block_at_s)
                    self.block_at_s = now_s

    def abandon(self) -> int:
        """Return how many blocks, from the first on, are in the pool; nothing is written into it from now on."""
        with self._lock:
            self._is_abandoned = True
            return len(self.durations_s)

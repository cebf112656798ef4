"""A read of stored blocks into a pool, by a thread that may be abandoned at any time."""

import threading
import time
from collections.abc import Collection, Sequence

import numpy as np
from torch import Tensor

from baton.kvtransfer.store.pool_blocks import PoolBlocks, rows_of
from baton.kvtransfer.store.store import Key, KVStore


class StoredRead:
    """Reads blocks in order, each through memory of its own: a store that hangs has no hold on the pool.

    A block is complete and checked before it reaches the pool. Stores in host memory do not hang: their blocks are read
    into the pool without another copy, and what turns out to be incomplete or damaged is zeroed.
    """

    def __init__(
        self,
        pool: PoolBlocks,
        stores: Sequence[KVStore],
        keys: Sequence[Key],
        blocks: Sequence[int],
        num_shards: int = 1,
        in_memory: Collection[KVStore] = (),
    ) -> None:
        """stores, keys, blocks: where each block is stored, under which key, and its number in the pool.

        If blocks have several shards, these are the shards' instead. in_memory: those of the stores in host memory.
        """
        self._pool = pool
        self._sources = list(zip(stores, keys, blocks, strict=True))
        self._num_shards = num_shards
        self._in_memory = in_memory
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
        self.block_at_s = time.monotonic()
        for store, key, block in self._sources:
            into = self._pool.memory(block) if store in self._in_memory else None
            if into is not None:
                is_read = self._read_into(into, store, key)
            else:
                is_read = self._read_through(buffer, store, key, block)
            if not is_read:
                return

    def abandon(self) -> int:
        """Return how many blocks, from the first on, are in the pool; nothing is written into it from now on.

        A copy of one block from host memory is waited for.
        """
        self._is_abandoned = True  # before the lock, which the thread would take for one block after the other
        with self._lock:
            return len(self.durations_s)

    def _read_through(self, buffer: Tensor, store: KVStore, key: Key, block: int) -> bool:
        """Read a block into a buffer, then into the pool; False if it is missing, or the read abandoned."""
        if self._is_abandoned or not store.read(key, rows_of(buffer)[0].data):
            return False
        with self._lock:
            if self._is_abandoned:
                return False
            self._pool.copy_in(buffer, 0, block)
            self._count()
            return True

    def _read_into(self, into: memoryview, store: KVStore, key: Key) -> bool:
        """Read a block into the pool; False if it is missing, or the read abandoned."""
        with self._lock:
            if self._is_abandoned:
                return False
            is_read = False
            try:
                is_read = store.read(key, into)
            finally:
                if not is_read:
                    np.asarray(into)[:] = 0
            if is_read:
                self._count()
            return is_read

    def _count(self) -> None:
        """Note a block, or a shard of one, that is in the pool."""
        self._num_in_pool += 1
        if self._num_in_pool % self._num_shards == 0:
            now_s = time.monotonic()
            self.durations_s.append(now_s - self.block_at_s)
            self.block_at_s = now_s

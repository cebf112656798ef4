"""Blocks of the KV pool: reference counts and the free list."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from baton.engine.request import NULL_BLOCK, BlockId


class BlockPool:
    """Reference counts and free list of the pool's blocks; a block is free when its count is 0.

    The free list is kept in eviction order: blocks without cached content first, then the least recently used.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs 2 blocks or more, one of them for padding, got {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._num_allocations = [0] * num_blocks
        self._ref_counts[NULL_BLOCK] = 1
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(map(BlockId, range(1, num_blocks)))
        self._spared: set[BlockId] = set()  # blocks to be skipped once when it is their turn to be evicted

    @property
    def num_free(self) -> int:
        """Number of blocks available for allocation."""
        return len(self._free)

    def ref_count(self, block: BlockId) -> int:
        """Return how many holders a block has."""
        return self._ref_counts[block]

    def num_allocations(self, block: BlockId) -> int:
        """Return how often a block was allocated; until it is again, nothing is written to its cached content."""
        return self._num_allocations[block]

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` free blocks, each with one holder; the caller must have checked `num_free`."""
        assert count <= len(self._free), f"{count} blocks requested, {len(self._free)} free"
        blocks = [self._pop() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            self._num_allocations[block] += 1
        return blocks

    def _pop(self) -> BlockId:
        """Remove and return the next free block; those that are spared go to the end of the list instead, once."""
        while True:
            block, _ = self._free.popitem(last=False)
            if block not in self._spared:
                return block
            self._spared.remove(block)
            self._free[block] = None

    def spare(self, blocks: Iterable[BlockId]) -> None:
        """Evict the blocks later than others that were used as recently: as if they were used once more."""
        self._spared.update(blocks)

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """Add a holder to each block; a free block with cached content leaves the free list."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[BlockId], is_cached: Sequence[bool]) -> None:
        """Drop one holder of each block. Pass a request's blocks in order: its last blocks are evicted first, so that
        a long prefix loses its end before its beginning.
        """
        for block, cached in zip(reversed(blocks), reversed(is_cached), strict=True):
            assert self._ref_counts[block] > 0, f"block {block} released without a holder"
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if not cached:
                    self.empty(block)

    def empty(self, block: BlockId) -> None:
        """Mark a block's content as useless: if the block is free, it is allocated next."""
        self._spared.discard(block)
        if block in self._free:
            self._free.move_to_end(block, last=False)

    def check_integrity(self, holders: Iterable[BlockId]) -> None:
        """Assert that the counts match `holders` (one entry per hold) exactly, and that all other blocks are free."""
        expected = [0] * self.num_blocks
        expected[NULL_BLOCK] = 1
        for block in holders:
            expected[block] += 1
        assert expected == self._ref_counts, "reference counts differ from the holders"
        free = {block for block in range(self.num_blocks) if self._ref_counts[block] == 0}
        assert free == set(self._free), "the free list differs from the blocks without a holder"

"""The blocks of the KV pool: who holds them, and in which order free ones are taken."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from baton.engine.request import BlockId

NULL_BLOCK = BlockId(0)  # pads block tables; never given out


class BlockPool:
    """Owns reference counts and the free list; a block is free when nobody holds it.

    The free list is kept in eviction order: blocks without cached content first, then the least recently used.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs 2 blocks or more, one of them for padding, got {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._ref_counts[NULL_BLOCK] = 1
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(map(BlockId, range(1, num_blocks)))

    @property
    def num_free(self) -> int:
        """Blocks that an allocation could take."""
        return len(self._free)

    def ref_count(self, block: BlockId) -> int:
        """Holders of a block."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[BlockId]:
        """Takes `count` free blocks, each with one holder; the caller has checked `num_free`."""
        assert count <= len(self._free), f"{count} blocks asked for, {len(self._free)} free"
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """Adds a holder; takes a block with cached content back from the free list."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[BlockId], is_cached: Sequence[bool]) -> None:
        """Drops a holder of each block. Call it with a request's blocks in order: its last blocks are evicted first,
        so that a long prefix loses its end before its beginning.
        """
        for block, cached in zip(reversed(blocks), reversed(is_cached), strict=True):
            assert self._ref_counts[block] > 0, f"block {block} released without a holder"
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if not cached:
                    self._free.move_to_end(block, last=False)

    def empty(self, block: BlockId) -> None:
        """The block's content is of no use any more: if it is free, it is taken next."""
        if block in self._free:
            self._free.move_to_end(block, last=False)

    def check_integrity(self, holders: Iterable[BlockId]) -> None:
        """Asserts that the counts are exactly what `holders` (one entry a hold) says, and that the rest is free."""
        expected = [0] * self.num_blocks
        expected[NULL_BLOCK] = 1
        for block in holders:
            expected[block] += 1
        assert expected == self._ref_counts, "reference counts differ from the holders"
        free = {block for block in range(self.num_blocks) if self._ref_counts[block] == 0}
        assert free == set(self._free), "the free list differs from the blocks nobody holds"

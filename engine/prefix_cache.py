"""Which blocks hold which content, so that a prompt starts behind what was computed before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.block_hash import BlockHash
from engine.block_pool import BlockPool
from engine.request import BlockId


@dataclass(slots=True)
class CacheChanges:
    """Hashes that came and went since the last look; `removed` happened before `stored`."""

    stored: list[BlockHash] = field(default_factory=list)
    removed: list[BlockHash] = field(default_factory=list)


class PrefixCache:
    """Owns the map from content to block over a `BlockPool`; all holds and releases of blocks go through here.

    A block keeps its content after its last holder released it, until the pool needs it for something else.
    """

    def __init__(self, pool: BlockPool, enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self._blocks: dict[BlockHash, BlockId] = {}
        self._hashes: dict[BlockId, BlockHash] = {}
        self._changed: dict[BlockHash, bool] = {}  # True: was known at the last look

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Blocks of the longest cached run of `hashes`; nobody holds them yet."""
        blocks: list[BlockId] = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_outside(self, blocks: Sequence[BlockId]) -> int:
        """Blocks that could be allocated once `blocks` are held."""
        return self.pool.num_free - sum(self.pool.ref_count(block) == 0 for block in blocks)

    def allocate(self, count: int) -> list[BlockId]:
        """Takes free blocks, evicting the content that they had."""
        blocks = self.pool.allocate(count)
        for block in blocks:
            block_hash = self._hashes.pop(block, None)
            if block_hash is not None:
                del self._blocks[block_hash]
                self._note(block_hash, was_known=True)
        return blocks

    def store(self, block: BlockId, block_hash: BlockHash) -> None:
        """The block is full and computed. The first block of a content stays the one that is found."""
        if not self.enabled or block_hash in self._blocks or block in self._hashes:
            return
        self._blocks[block_hash] = block
        self._hashes[block] = block_hash
        self._note(block_hash, was_known=False)

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Drops a holder of each block, a request's blocks in order."""
        self.pool.release(blocks, [block in self._hashes for block in blocks])

    def snapshot(self) -> list[BlockHash]:
        """All cached hashes; take the changes first, or they will be told again."""
        return list(self._blocks)

    def take_changes(self) -> CacheChanges:
        """What came and went since the last look; what did both is left out."""
        changes = CacheChanges()
        for block_hash, was_known in self._changed.items():
            is_known = block_hash in self._blocks
            if is_known and not was_known:
                changes.stored.append(block_hash)
            elif was_known and not is_known:
                changes.removed.append(block_hash)
        self._changed.clear()
        return changes

    def check_integrity(self) -> None:
        """Asserts that both maps are each other's inverse."""
        assert self._blocks == {block_hash: block for block, block_hash in self._hashes.items()}
        assert len(self._blocks) == len(self._hashes)

    def _note(self, block_hash: BlockHash, was_known: bool) -> None:
        self._changed.setdefault(block_hash, was_known)

"""Which blocks hold which content, so that a prompt starts behind what was computed before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_pool import BlockPool
from baton.engine.request import BlockId


@dataclass(slots=True)
class CacheChanges:
    """Hashes that came and went since the last look; `removed` happened before `stored`."""

    stored: list[BlockHash] = field(default_factory=list)
    removed: list[BlockHash] = field(default_factory=list)


class PrefixCache:
    """Owns the map from content to block over a `BlockPool`; all holds and releases of blocks go through here.

    A block keeps its content after its last holder released it, until the pool needs it for something else.

    The cache is closed under prefixes: with a content it has all that is before it in its chain. Requests that computed
    the same block at once keep a block each, and only the first is found; once that one is evicted, what only the
    others hold behind it could not be found either, and goes too.
    """

    def __init__(self, pool: BlockPool, enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self._blocks: dict[BlockHash, BlockId] = {}
        self._hashes: dict[BlockId, BlockHash] = {}
        self._parents: dict[BlockHash, BlockHash] = {}  # of all cached contents but the first of a chain
        self._children: dict[BlockHash, set[BlockHash]] = {}
        self._changed: dict[BlockHash, bool] = {}  # since the last look; True: was known then, False: is known now

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._blocks

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
            block_hash = self._hashes.get(block)
            if block_hash is not None:
                self._evict(block_hash)
        return blocks

    def store(self, block: BlockId, block_hash: BlockHash, parent: BlockHash | None = None) -> None:
        """The block is full and computed. The first block of a content stays the one that is found.

        `parent` is the content before it, if any; without that in the cache it could not be found, and is not kept.
        """
        if not self.enabled or block_hash in self._blocks or block in self._hashes:
            return
        if parent is not None:
            if parent not in self._blocks:
                return
            self._parents[block_hash] = parent
            self._children.setdefault(parent, set()).add(block_hash)
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
        changes, self._changed = self._changed, {}
        return CacheChanges(
            stored=[block_hash for block_hash, was_known in changes.items() if not was_known],
            removed=[block_hash for block_hash, was_known in changes.items() if was_known],
        )

    def check_integrity(self) -> None:
        """Asserts that both maps are each other's inverse, and that the cache is closed under prefixes."""
        assert self._blocks == {block_hash: block for block, block_hash in self._hashes.items()}
        assert len(self._blocks) == len(self._hashes)
        assert self._parents.keys() <= self._blocks.keys()
        assert set(self._parents.values()) == self._children.keys() <= self._blocks.keys()
        children = [(child, parent) for parent, group in self._children.items() for child in group]
        assert dict(children) == self._parents
        assert len(children) == len(self._parents)

    def _evict(self, block_hash: BlockHash) -> None:
        """Forgets a content and all that is behind it in its chains."""
        parent = self._parents.get(block_hash)
        if parent is not None:
            self._children[parent].discard(block_hash)
            if not self._children[parent]:
                del self._children[parent]
        lost = [block_hash]
        while lost:
            block_hash = lost.pop()
            block = self._blocks.pop(block_hash)
            del self._hashes[block]
            self._parents.pop(block_hash, None)
            lost += self._children.pop(block_hash, ())
            self.pool.empty(block)
            self._note(block_hash, was_known=True)

    def _note(self, block_hash: BlockHash, was_known: bool) -> None:
        if self._changed.pop(block_hash, was_known) is was_known:  # else it is as it was at the last look
            self._changed[block_hash] = was_known

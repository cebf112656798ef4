"""Prefix cache: the block that holds each known content, so that prompts reuse KV computed before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_pool import BlockPool
from baton.engine.request import BlockId


@dataclass(slots=True)
class CacheChanges:
    """Hashes removed and stored since the last call of `take_changes`; apply `removed` before `stored`."""

    stored: list[BlockHash] = field(default_factory=list)
    removed: list[BlockHash] = field(default_factory=list)


class PrefixCache:
    """Map from content hash to block over a `BlockPool`.

    A block keeps its content after its last holder has released it, until the pool reuses the block.

    The cache is closed under prefixes: if it has a block, it has all blocks before it in its chain. Requests that
    compute the same content at the same time keep a block each, and only the first stored is found. Evicting a block
    also evicts all its descendants in the cache, which could no longer be found.
    """

    def __init__(self, pool: BlockPool, enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self._blocks: dict[BlockHash, BlockId] = {}
        self._hashes: dict[BlockId, BlockHash] = {}
        self._parents: dict[BlockHash, BlockHash] = {}  # of all cached hashes except the first of a chain
        self._children: dict[BlockHash, set[BlockHash]] = {}
        self._changed: dict[BlockHash, bool] = {}  # since the last take_changes; True: removed, False: stored

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._blocks

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Return the blocks of the longest cached prefix of `hashes`, without holding them."""
        blocks: list[BlockId] = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_outside(self, blocks: Sequence[BlockId]) -> int:
        """Return how many blocks could be allocated once `blocks` are held."""
        return self.pool.num_free - sum(self.pool.ref_count(block) == 0 for block in blocks)

    def allocate(self, count: int) -> list[BlockId]:
        """Allocate `count` free blocks, evicting their cached content."""
        blocks = self.pool.allocate(count)
        for block in blocks:
            block_hash = self._hashes.get(block)
            if block_hash is not None:
                self._evict(block_hash)
        return blocks

    def store(self, block: BlockId, block_hash: BlockHash, parent: BlockHash | None = None) -> None:
        """Store a full, computed block under its hash, unless another block already holds that content.

        `parent` is the hash of the previous block in the chain, if any. If the parent is not cached, the block could
        not be found and is not stored.
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
        """Drop one holder of each block; pass a request's blocks in order."""
        self.pool.release(blocks, [block in self._hashes for block in blocks])

    def snapshot(self) -> list[BlockHash]:
        """Return all cached hashes; call `take_changes` first, or it will report them again."""
        return list(self._blocks)

    def take_changes(self) -> CacheChanges:
        """Return the hashes stored and removed since the last call; changes that cancel out are left out."""
        changes, self._changed = self._changed, {}
        return CacheChanges(
            stored=[block_hash for block_hash, was_known in changes.items() if not was_known],
            removed=[block_hash for block_hash, was_known in changes.items() if was_known],
        )

    def check_integrity(self) -> None:
        """Assert that both maps are each other's inverse, and that the cache is closed under prefixes."""
        assert self._blocks == {block_hash: block for block, block_hash in self._hashes.items()}
        assert len(self._blocks) == len(self._hashes)
        assert self._parents.keys() <= self._blocks.keys()
        assert set(self._parents.values()) == self._children.keys() <= self._blocks.keys()
        children = [(child, parent) for parent, group in self._children.items() for child in group]
        assert dict(children) == self._parents
        assert len(children) == len(self._parents)

    def _evict(self, block_hash: BlockHash) -> None:
        """Remove a hash and all its descendants."""
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
        if self._changed.pop(block_hash, was_known) is was_known:  # otherwise the two changes cancel out
            self._changed[block_hash] = was_known

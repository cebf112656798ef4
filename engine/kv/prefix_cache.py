"""Prefix cache: the block that holds each known content, so that prompts reuse KV computed before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_pool import BlockPool
from baton.engine.kv.checkpoints import StateCheckpoints
from baton.engine.kv.groups import KVGroups, held
from baton.engine.request import NULL_BLOCK, BlockId

ONE_GROUP = KVGroups(1)


@dataclass(slots=True)
class CacheChanges:
    """Hashes removed and stored since the last call of `take_changes`; apply `removed` before `stored`."""

    stored: list[BlockHash] = field(default_factory=list)
    removed: list[BlockHash] = field(default_factory=list)


class PrefixCache:
    """Map from content hash and KV group to block over a `BlockPool`.

    A block keeps its content after its last holder has released it, until the pool reuses the block.

    In the first group the cache is closed under prefixes: if it has a block, it has all blocks before it in its chain.
    Requests that compute the same content at the same time keep a block each, and only the first stored is found.
    Evicting a block also evicts all its descendants in the cache, which could no longer be found.

    A hash may lack blocks of the other groups, whose windows need not reach back to it. It has none without a block of
    the first group. Only the first group's blocks are reported as changes: if others are missing, a hit is shorter.

    With recurrent state a hit ends at a checkpoint, so only hashes up to the last checkpoint of a chain are reported.
    """

    def __init__(self, pool: BlockPool, enabled: bool = True, groups: KVGroups = ONE_GROUP) -> None:
        self.pool = pool
        self.enabled = enabled
        self.groups = groups
        # After a multiple of these numbers of tokens, the next one attends to no earlier one.
        self._restarts = {
            span.size for span in groups.spans if span.size is not None and (span.is_chunked or span.size == 1)
        }
        self.checkpoints = StateCheckpoints()
        self._reported: set[BlockHash] = set()  # with recurrent state: those with a checkpoint, or with one behind them
        self._blocks: dict[BlockHash, BlockId] = {}  # of the first group
        self._others: dict[BlockHash, list[BlockId]] = {}  # of the other groups; the null block: not cached
        self._hashes: dict[BlockId, BlockHash] = {}
        self._parents: dict[BlockHash, BlockHash] = {}  # of all cached hashes except the first of a chain
        self._children: dict[BlockHash, set[BlockHash]] = {}
        self._changed: dict[BlockHash, bool] = {}  # since the last take_changes; True: removed, False: stored

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._blocks

    def block_of(self, block_hash: BlockHash) -> BlockId:
        """Return the first group's block of a cached hash."""
        return self._blocks[block_hash]

    def blocks_of(self, block_hash: BlockHash) -> list[BlockId]:
        """Return all blocks of a hash: those of the groups, then those of the state after it; none if it is not cached.

        The null block stands for one that is not cached.
        """
        if block_hash not in self._blocks:
            return []
        others = self._others.get(block_hash, [NULL_BLOCK] * (self.groups.num_groups - 1))
        has_state = block_hash in self.checkpoints.hashes
        return [self._blocks[block_hash], *others, *(self.checkpoints.at(block_hash) if has_state else ())]

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Return the first group's blocks of the longest prefix of `hashes` that all groups have, without holding them.

        Blocks behind a window of the first group are null blocks.
        """
        return self.match_groups(hashes)[0]

    def match_groups(self, hashes: Sequence[BlockHash]) -> list[list[BlockId]]:
        """Return the block tables of the longest prefix of `hashes` that all groups have, without holding the blocks.

        A group needs those blocks that the next token attends to; the others are null blocks.
        """
        blocks: list[BlockId] = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        if self.groups.states is not None:
            return [blocks[: self.checkpoints.last(hashes[: len(blocks)])]]
        if not self.groups.has_windows:
            return [blocks]
        length = self._num_in_all_groups(hashes, len(blocks))
        firsts = [min(first, length) for first in self.groups.first_blocks(length * self.groups.block_size)]
        tables = [[NULL_BLOCK] * firsts[0] + blocks[firsts[0] : length]]
        for group, first in enumerate(firsts[1:]):
            cached = [self._others[block_hash][group] for block_hash in hashes[first:length]]
            tables.append([NULL_BLOCK] * first + cached)
        return tables

    def _num_in_all_groups(self, hashes: Sequence[BlockHash], length: int) -> int:
        """Return the length of the longest prefix, up to `length`, whose windows are cached in all groups."""
        while length:
            if self._lacks_last(hashes[length - 1], length * self.groups.block_size):
                length -= 1
                continue
            firsts = self.groups.first_blocks(length * self.groups.block_size)
            lacking = [self._last_lacking(hashes, group, first, length) for group, first in enumerate(firsts[1:])]
            last = max(lacking, default=-1)
            if last < 0:
                break
            length = last  # windows only advance, so any longer prefix would need that block, too
        return length

    def _lacks_last(self, block_hash: BlockHash, num_tokens: int) -> bool:
        """Return whether a prefix lacks its last block in any group; False if some group may not need that block.

        Thousands of blocks behind each other may be lacking, so this check is a quick one.
        """
        others = self._others.get(block_hash)
        is_lacking = others is None or NULL_BLOCK in others
        return is_lacking and self.groups.num_groups > 1 and not any(num_tokens % size == 0 for size in self._restarts)

    def _last_lacking(self, hashes: Sequence[BlockHash], group: int, first: int, end: int) -> int:
        """Return the last index from `first` on of which another group has no block; -1 if there is none."""
        for index in range(end - 1, first - 1, -1):
            others = self._others.get(hashes[index])
            if others is None or others[group] == NULL_BLOCK:
                return index
        return -1

    def num_free_outside(self, blocks: Sequence[BlockId]) -> int:
        """Return how many blocks could be allocated once `blocks` are held."""
        return self.pool.num_free - sum(self.pool.ref_count(block) == 0 for block in blocks)

    def allocate(self, count: int) -> list[BlockId]:
        """Allocate `count` free blocks, evicting their cached content."""
        blocks = self.pool.allocate(count)
        for block in blocks:
            checkpoint = self.checkpoints.hash_of(block)
            if checkpoint is not None:
                self._evict_checkpoint(checkpoint)
                self._withdraw(checkpoint)
            block_hash = self._hashes.get(block)
            if block_hash is None:
                continue
            if self._blocks[block_hash] == block:
                self._evict(block_hash)
            else:
                others = self._others[block_hash]
                others[others.index(block)] = NULL_BLOCK
                del self._hashes[block]
        return blocks

    def store(
        self, block: BlockId, block_hash: BlockHash, parent: BlockHash | None = None, others: Sequence[BlockId] = ()
    ) -> None:
        """Store a full, computed block under its hash, unless another block already holds that content.

        `parent` is the hash of the previous block in the chain, if any. If the parent is not cached, the block could
        not be found and is not stored. others: the blocks with the same tokens of the other groups; the null block
        stands for one that was given back.
        """
        self._store_first(block, block_hash, parent)
        if others and block_hash in self._blocks:
            known = self._others.setdefault(block_hash, [NULL_BLOCK] * len(others))
            for group, other in enumerate(others):
                if known[group] == NULL_BLOCK != other and other not in self._hashes:
                    known[group] = other
                    self._hashes[other] = block_hash

    def _store_first(self, block: BlockId, block_hash: BlockHash, parent: BlockHash | None) -> None:
        if not self.enabled or block_hash in self._blocks or block in self._hashes or block == NULL_BLOCK:
            return
        if parent is not None:
            if parent not in self._blocks:
                return
            self._parents[block_hash] = parent
            self._children.setdefault(parent, set()).add(block_hash)
        self._blocks[block_hash] = block
        self._hashes[block] = block_hash
        if self.groups.states is None:
            self._note(block_hash, was_known=False)

    def store_checkpoint(self, block_hash: BlockHash, blocks: list[BlockId]) -> bool:
        """Store the recurrent state after all tokens of a hash, unless it is known or no block has that content.

        Returns whether it is stored: nothing may be written to its blocks from then on.
        """
        if block_hash not in self._blocks or not self.checkpoints.store(block_hash, blocks):
            return False
        found: BlockHash | None = block_hash
        while found is not None and found not in self._reported:
            self._reported.add(found)
            self._note(found, was_known=False)
            found = self._parents.get(found)
        return True

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Drop one holder of each block; pass a request's blocks in order."""
        self.pool.release(blocks, [block in self._hashes or block in self.checkpoints for block in blocks])

    def clear(self) -> int:
        """Forget all blocks without a holder, and return their number."""
        before = len(self._blocks)
        for block_hash in list(self._blocks):
            if block_hash in self and self.pool.ref_count(self._blocks[block_hash]) == 0:
                self._evict(block_hash)
        return before - len(self._blocks)

    def snapshot(self) -> list[BlockHash]:
        """Return all hashes that were reported; call `take_changes` first, or it will report them again."""
        return list(self._blocks if self.groups.states is None else self._reported)

    def take_changes(self) -> CacheChanges:
        """Return the hashes stored and removed since the last call; changes that cancel out are left out."""
        changes, self._changed = self._changed, {}
        return CacheChanges(
            stored=[block_hash for block_hash, was_known in changes.items() if not was_known],
            removed=[block_hash for block_hash, was_known in changes.items() if was_known],
        )

    def check_integrity(self) -> None:
        """Assert that the maps are each other's inverse, and that the cache is closed under prefixes."""
        self.checkpoints.check_integrity(self._blocks, self._hashes)
        reported: set[BlockHash] = set()
        for block_hash in self.checkpoints.hashes:
            found: BlockHash | None = block_hash
            while found is not None and found not in reported:
                reported.add(found)
                found = self._parents.get(found)
        assert self._reported == reported
        expected = {block: block_hash for block_hash, block in self._blocks.items()}
        for block_hash, others in self._others.items():
            expected |= dict.fromkeys(held(others), block_hash)
        assert self._hashes == expected
        assert len(expected) == len(self._blocks) + sum(len(held(others)) for others in self._others.values())
        assert self._others.keys() <= self._blocks.keys()
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
            for block in (self._blocks.pop(block_hash), *held(self._others.pop(block_hash, ()))):
                del self._hashes[block]
                self.pool.empty(block)
            self._evict_checkpoint(block_hash)
            self._parents.pop(block_hash, None)
            lost += self._children.pop(block_hash, ())
            if self.groups.states is None:
                self._note(block_hash, was_known=True)
            elif block_hash in self._reported:
                self._reported.remove(block_hash)
                self._note(block_hash, was_known=True)
        self._withdraw(parent)

    def _evict_checkpoint(self, block_hash: BlockHash) -> None:
        for block in self.checkpoints.evict(block_hash):
            self.pool.empty(block)

    def _withdraw(self, block_hash: BlockHash | None) -> None:
        """Report the removal of a hash and of those before it that have no checkpoint any more, nor one behind them."""
        while (
            block_hash in self._reported
            and block_hash not in self.checkpoints.hashes
            and self._reported.isdisjoint(self._children.get(block_hash, ()))
        ):
            self._reported.remove(block_hash)
            self._note(block_hash, was_known=True)
            block_hash = self._parents.get(block_hash)

    def _note(self, block_hash: BlockHash, was_known: bool) -> None:
        if self._changed.pop(block_hash, was_known) is was_known:  # otherwise the two changes cancel out
            self._changed[block_hash] = was_known

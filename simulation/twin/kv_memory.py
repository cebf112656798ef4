"""A replica's blocks: the engine's own prefix cache, held and filled as its block manager does it."""

from collections.abc import Sequence as Ordered

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_pool import BlockPool
from baton.engine.kv.prefix_cache import CacheChanges, PrefixCache
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.sequence import Sequence


class KVMemory:
    """Owns the prefix cache. `engine/kv/block_manager.py` does the same with requests that have their tokens."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._size = spec.block_size
        self._cache = PrefixCache(BlockPool(spec.num_blocks))

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can hold."""
        return self._cache.pool.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that an allocation could take."""
        return self._cache.pool.num_free

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill, the last perhaps in part."""
        return -(-num_tokens // self._size)

    def num_cached_tokens(self, hashes: Ordered[BlockHash], num_tokens: int) -> int:
        """Of a prompt's first tokens; at least one is left to compute."""
        return len(self._cache.match(hashes[: (num_tokens - 1) // self._size])) * self._size

    def take(self, sequence: Sequence, reserve: int) -> bool:
        """Gives a waiting sequence what is cached of it and blocks for the rest; False, and nothing changes, if fewer
        than `reserve` blocks would be left.
        """
        num_full = (sequence.num_tokens - 1) // self._size
        hashes = sequence.hashes[:num_full]
        if sequence.num_preemptions:  # what it said before may still be there too
            hashes = [sequence.hash_of(index) for index in range(num_full)]
        cached = self._cache.match(hashes)
        lacking = self.num_blocks_for(sequence.num_tokens) - len(cached)
        if lacking + reserve > self._cache.num_free_outside(cached):
            return False
        self._cache.pool.hold(cached)
        sequence.blocks = cached + self._cache.allocate(lacking)
        sequence.num_computed = len(cached) * self._size
        sequence.num_stored = len(cached)
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Gives the sequence blocks for all its tokens; False, and nothing changes, if too few are free."""
        lacking = self.num_blocks_for(sequence.num_tokens) - len(sequence.blocks)
        if lacking > self._cache.pool.num_free:
            return False
        if lacking > 0:
            sequence.blocks += self._cache.allocate(lacking)
        return True

    def advance(self, sequence: Sequence, num_computed: int) -> None:
        """Raises the number of computed tokens, and offers blocks that became full to the cache."""
        sequence.num_computed = num_computed
        first, last = sequence.num_stored, num_computed // self._size
        if last <= first:
            return
        while first > 0 and sequence.hash_of(first - 1) not in self._cache:
            first -= 1
        for index in range(first, last):
            parent = sequence.hash_of(index - 1) if index else None
            self._cache.store(sequence.blocks[index], sequence.hash_of(index), parent)
        sequence.num_stored = last

    def free(self, sequence: Sequence) -> None:
        """Takes the sequence's blocks."""
        self._cache.release(sequence.blocks)
        sequence.blocks = []

    def take_changes(self) -> CacheChanges:
        """What came to and went from the cache since the last look."""
        return self._cache.take_changes()

    def check_integrity(self, sequences: Ordered[Sequence]) -> None:
        """Asserts that the blocks are held by exactly these sequences, and that the cache is whole."""
        self._cache.pool.check_integrity([block for sequence in sequences for block in sequence.blocks])
        self._cache.check_integrity()

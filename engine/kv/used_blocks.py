"""The cached blocks that requests stored or found, from which stores below the pool are filled."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_origins import BlockOrigins
from baton.engine.kv.block_pool import BlockPool
from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.request import NULL_BLOCK, BlockId

MAX_BLOCKS = 1 << 16  # of each kind; the oldest are forgotten first
REPEAT_S = 300.0  # at least, until a saved block that is found is offered again, so that stores note its use


@dataclass(frozen=True, slots=True)
class UsedBlock:
    """A cached block, which nothing holds: a copy of it is good if the block was not allocated in the meantime."""

    block_hash: BlockHash
    block: BlockId
    num_allocations: int
    number: int = 0  # which of the hash's blocks it is; see `BlockPlace`


@dataclass(frozen=True, slots=True)
class FetchedBlocks:
    """Hashes of blocks fetched from the fastest store below the pool."""

    hashes: Sequence[BlockHash]
    is_only_store: bool  # there is no other store, which may lack them


class UsedBlocks:
    """Hashes of blocks since they were last taken: popular ones first, and of these the oldest.

    A block is popular if a second request found it, or if the request that computed it had found those before it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._popular: OrderedDict[BlockHash, None] = OrderedDict()  # a dict finds its first key slowly
        self._others: OrderedDict[BlockHash, None] = OrderedDict()
        self._saved: set[BlockHash] = set()
        self._saved_earlier: set[BlockHash] = set()
        self._clock = clock
        self._saved_since_s = clock()

    def __len__(self) -> int:
        return len(self._popular) + len(self._others)

    def note_found(self, hashes: Iterable[BlockHash]) -> None:
        """Add blocks that another request stored, except recently saved ones."""
        saved = self._saved, self._saved_earlier
        self.note((each for each in hashes if each not in saved[0] and each not in saved[1]), is_popular=True)

    def note(self, hashes: Iterable[BlockHash], is_popular: bool) -> None:
        """Add blocks that were just stored; one that is there already may become popular, or else keeps its place."""
        for block_hash in hashes:
            if is_popular:
                self._others.pop(block_hash, None)
                self._popular.setdefault(block_hash)
            elif block_hash not in self._popular:
                self._others.setdefault(block_hash)
        for kind in (self._popular, self._others):
            while len(kind) > MAX_BLOCKS:
                kind.popitem(last=False)

    def note_fetched(self, fetched: FetchedBlocks) -> None:
        """Remove blocks that need not be saved: other stores, if there are any, were offered them recently.

        Blocks of the only store count as saved just now.
        """
        if fetched.is_only_store:
            self._note_saved(fetched.hashes)
        for block_hash in fetched.hashes:
            if block_hash in self._saved or block_hash in self._saved_earlier:
                self._popular.pop(block_hash, None)
                self._others.pop(block_hash, None)

    def take(self, count: int) -> list[BlockHash]:
        """Remove and return the next blocks, at most `count`."""
        taken: list[BlockHash] = []
        for kind in (self._popular, self._others):
            taken += [kind.popitem(last=False)[0] for _ in range(min(count - len(taken), len(kind)))]
        return taken

    def take_cached(self, count: int, cache: PrefixCache, foreign: BlockOrigins) -> list[UsedBlock]:
        """Remove the next hashes, and return their cached blocks of all KV groups and states, except `foreign` ones.

        About `count` blocks, since those of a hash are not divided. They are not held, which would change the order of
        eviction; see `end_copy`.
        """
        found: list[UsedBlock] = []
        for _ in range(count):
            if len(found) >= count:
                break
            for block_hash in self.take(1):
                found += [
                    UsedBlock(block_hash, block, cache.pool.num_allocations(block), number)
                    for number, block in enumerate(cache.blocks_of(block_hash))
                    if block != NULL_BLOCK and block not in foreign
                ]
        return found

    def end_copy(self, taken: Sequence[UsedBlock], pool: BlockPool) -> list[bool]:
        """Return which copies, made since `BlockManager.take_used`, are good.

        Their blocks are left out for 300 s or more, or until they are computed again: many requests find those of a
        popular prompt.
        """
        are_good = [each.num_allocations == pool.num_allocations(each.block) for each in taken]
        self._note_saved(each.block_hash for each, is_good in zip(taken, are_good, strict=True) if is_good)
        return are_good

    def _note_saved(self, hashes: Iterable[BlockHash]) -> None:
        now_s = self._clock()
        if now_s - self._saved_since_s > REPEAT_S or len(self._saved) > MAX_BLOCKS:
            self._saved, self._saved_earlier, self._saved_since_s = set(), self._saved, now_s
        self._saved.update(hashes)

"""Index of the blocks in every worker's prefix cache, kept exact by the workers' cache events.

A worker's cache is closed under prefixes: a worker that has a block has all blocks in front of it (the engine's cache
guarantees this, also during eviction). So bisection over a prompt's hashes finds the end of a worker's prefix. If a
cache were not closed, the match would only be a wrong estimate.

The compiled index is one map from block hash to the workers that hold the block, so one probe covers all workers, and
workers whose prefixes end at the same block are searched together. A prompt that no worker has costs one probe; a
prefix that all workers have costs about log2(its blocks). The index never pauses: its table grows, and lost workers are
removed, a few slots per event. Memory: 24 bytes per slot at a load of 35% to 70%, so 34 to 69 bytes per distinct block,
and 1.5 times as much while it grows; about 190 more for a block that more than four of 1,000 workers hold. Blocks of
lost workers are freed after as many events as a third of the blocks in the map. The maximum is 32,767 workers.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.engine.kv.block_hash import HASH_BYTES
from baton.router.index.python_prefix_index import PythonIndex

try:
    from baton.router.index.native.prefix_index import CompiledIndex
except ImportError:  # the package was installed without compiled extensions
    CompiledIndex = None  # type: ignore[assignment, misc]  # mypy has no optional classes

logger = logging.getLogger(__name__)


STORES = "/stores"


def stores_of(incarnation: str) -> str:
    """Return the key under which the index has the blocks in the stores below a worker's pool."""
    return incarnation + STORES


class BlockIndex(Protocol):
    """Implementation of `PrefixIndex`, which documents the methods."""

    def reset(self, incarnation: str) -> None:
        """Remove a worker's blocks."""

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Apply one cache event."""

    def match(self, hashes: bytes) -> dict[str, int]:
        """Return the length of each worker's longest prefix in blocks."""

    def num_blocks(self, incarnation: str) -> int:
        """Return the number of a worker's blocks."""


def create_index() -> BlockIndex:
    """Return the compiled index, or the Python one with a warning if nothing was compiled."""
    if CompiledIndex is not None:
        return CompiledIndex()
    logger.warning("the compiled prefix index is not installed; using the slower Python one")
    return PythonIndex()


class PrefixIndex:
    """Block hashes in the cache of each worker.

    Workers are keyed by incarnation, so events of a restarted worker never mix with those of the previous one.
    """

    def __init__(self, create: Callable[[], BlockIndex] = create_index) -> None:
        self._index = create()

    def reset(self, incarnation: str) -> None:
        """Remove a worker's blocks: a snapshot follows, or the worker was lost."""
        self._index.reset(incarnation)

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Apply one cache event, removals first. Raises ValueError, and changes nothing, for a truncated hash."""
        self._index.update(incarnation, removed, stored)

    def match(self, hashes: bytes) -> dict[str, int]:
        """Return the cached prefix length in blocks, by incarnation, of each worker that has the first block.

        `hashes`: the concatenated hashes of the prompt's blocks. Raises ValueError for a truncated hash.
        """
        return self._index.match(hashes)

    def num_blocks(self, incarnation: str) -> int:
        """Return the number of blocks that the worker has cached."""
        return self._index.num_blocks(incarnation)


LIFE_S = 1.0
MAX_CHAINS = 4096  # expected at once; further ones replace the oldest


@dataclass(frozen=True, slots=True)
class _Chain:
    """Chain of blocks that a worker should have; the hash of the last one identifies it."""

    num_blocks: int
    first: bytes
    last: bytes
    incarnation: str
    end_s: float


class ExpectedBlocks:
    """Chains of the last second that workers should have cached but may not have reported.

    A prompt is compared only with chains that have the same first block.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chains: deque[_Chain] = deque()  # oldest first
        self._workers: dict[bytes, dict[str, float]] = {}  # by last hash: expiry time of each incarnation
        self._lengths: dict[bytes, Counter[int]] = {}  # by first hash: number of chains of each length

    def note(self, incarnation: str, hashes: bytes) -> None:
        """Expect the blocks with these concatenated hashes at a worker."""
        if not hashes:
            return
        num_blocks, first, last = len(hashes) // HASH_BYTES, hashes[:HASH_BYTES], hashes[-HASH_BYTES:]
        chain = _Chain(num_blocks, first, last, incarnation, self._clock() + LIFE_S)
        self._forget_old(MAX_CHAINS - 1)
        self._chains.append(chain)
        self._workers.setdefault(last, {})[incarnation] = chain.end_s
        self._lengths.setdefault(first, Counter())[num_blocks] += 1

    def match(self, hashes: bytes) -> dict[str, int]:
        """Return the expected prefix length in blocks, by incarnation; workers with none are omitted."""
        if not self._chains:
            return {}
        self._forget_old(MAX_CHAINS)
        found: dict[str, int] = {}
        for num_blocks in self._lengths.get(hashes[:HASH_BYTES], ()):
            end = num_blocks * HASH_BYTES
            if end > len(hashes):
                continue
            for incarnation in self._workers.get(hashes[end - HASH_BYTES : end], ()):
                found[incarnation] = max(num_blocks, found.get(incarnation, 0))
        return found

    def _forget_old(self, limit: int) -> None:
        """Remove expired chains, and the oldest ones above the limit."""
        now_s = self._clock()
        while self._chains and (self._chains[0].end_s <= now_s or len(self._chains) > limit):
            chain = self._chains.popleft()
            lengths, workers = self._lengths[chain.first], self._workers.get(chain.last, {})
            lengths[chain.num_blocks] -= 1
            if not lengths[chain.num_blocks]:
                del lengths[chain.num_blocks]
            if not lengths:
                del self._lengths[chain.first]
            if workers.get(chain.incarnation) == chain.end_s:  # otherwise it was noted again later
                del workers[chain.incarnation]
                if not workers:
                    del self._workers[chain.last]

"""Which worker has which blocks in its prefix cache, exactly as the workers' cache events tell it.

A worker's cache is closed under prefixes: whoever has a block has all blocks before it (the engine's cache sees to
that, also while it evicts). So the end of a worker's prefix is found by bisection over a prompt's hashes; were a cache
not closed, a match could only be a wrong guess of what the worker will find.

The compiled index is one map from block hash to the workers that hold it, so that one probe tells of all workers, and
those whose prefixes end together are searched together: a prompt that nobody has costs one probe, one whose beginning
is everywhere about log2(its blocks). It never pauses: its table grows, and a worker that is gone is forgotten, a few
slots at every event. Memory: 24 bytes a slot, from 35% to 70% full: 34 to 69 bytes for each distinct block, 1.5 times
as much while it grows; about 190 more for a block that over four of 1,000 workers hold. Blocks of workers that are
gone count until as many events came as a third of the map has blocks. It takes 32,767 workers.
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
except ImportError:  # nothing was compiled when this was installed
    CompiledIndex = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

logger = logging.getLogger(__name__)


class BlockIndex(Protocol):
    """What an implementation does; see `PrefixIndex`."""

    def reset(self, incarnation: str) -> None:
        """Forgets a worker's blocks."""

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Applies one event."""

    def match(self, hashes: bytes) -> dict[str, int]:
        """Finds each worker's longest prefix."""

    def num_blocks(self, incarnation: str) -> int:
        """Counts a worker's blocks."""


def create_index() -> BlockIndex:
    """The compiled index, or where there is none the Python one, which the log then says."""
    if CompiledIndex is not None:
        return CompiledIndex()
    logger.warning("the prefix index was not compiled when this was installed; the Python one serves, more slowly")
    return PythonIndex()


class PrefixIndex:
    """Owns, per worker, the set of block hashes in its cache.

    A worker's key is its incarnation, so that news of its next life never mixes with this one's.
    """

    def __init__(self, create: Callable[[], BlockIndex] = create_index) -> None:
        self._index = create()

    def reset(self, incarnation: str) -> None:
        """Forgets what the worker had: a snapshot follows, or the worker is gone."""
        self._index.reset(incarnation)

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Applies one event, what was removed first. Raises ValueError, and changes nothing, if a hash is cut short."""
        self._index.update(incarnation, removed, stored)

    def match(self, hashes: bytes) -> dict[str, int]:
        """For each worker that has the first of a prompt's blocks, how many it has from the first on.

        `hashes` are those of the prompt's blocks, one after the other. Raises ValueError if one is cut short.
        """
        return self._index.match(hashes)

    def num_blocks(self, incarnation: str) -> int:
        """How many blocks the worker has cached."""
        return self._index.num_blocks(incarnation)


LIFE_S = 1.0
MAX_CHAINS = 4096  # expected at once; the oldest are forgotten for more


@dataclass(frozen=True, slots=True)
class _Chain:
    """Blocks that a worker should have; the last one's hash stands for all."""

    num_blocks: int
    first: bytes
    last: bytes
    incarnation: str
    end_s: float


class ExpectedBlocks:
    """Owns the chains of the last second; a prompt is compared with those alone that begin as it does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chains: deque[_Chain] = deque()  # the oldest first
        self._workers: dict[bytes, dict[str, float]] = {}  # incarnations and until when, by a chain's last hash
        self._lengths: dict[bytes, Counter[int]] = {}  # of the chains, by their first hash

    def note(self, incarnation: str, hashes: bytes) -> None:
        """Expect these blocks at a worker, whose hashes stand one after the other."""
        if not hashes:
            return
        num_blocks, first, last = len(hashes) // HASH_BYTES, hashes[:HASH_BYTES], hashes[-HASH_BYTES:]
        chain = _Chain(num_blocks, first, last, incarnation, self._clock() + LIFE_S)
        self._forget_old(MAX_CHAINS - 1)
        self._chains.append(chain)
        self._workers.setdefault(last, {})[incarnation] = chain.end_s
        self._lengths.setdefault(first, Counter())[num_blocks] += 1

    def match(self, hashes: bytes) -> dict[str, int]:
        """Return how many of a prompt's first blocks each worker is expected to have; those with none are left out."""
        if not self._chains:
            return {}
        self._forget_old(MAX_CHAINS)
        found: dict[str, int] = {}
        for num_blocks in self._lengths.get(hashes[:HASH_BYTES], ()):
            end = num_blocks * HASH_BYTES
            for incarnation in self._workers.get(hashes[end - HASH_BYTES : end], ()):
                found[incarnation] = max(num_blocks, found.get(incarnation, 0))
        return found

    def _forget_old(self, limit: int) -> None:
        """Forget the chains whose time is over, and the oldest until no more than the limit are left."""
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

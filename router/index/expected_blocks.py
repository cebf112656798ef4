"""Blocks that workers are about to report: what a choice's prompt and output left in their caches when it ended.

A client's next turn may come before the worker's report does, and would go where nothing of it is cached. What is
expected stays apart from the index, which has only what workers reported, and is forgotten after a second: by then the
report has come, or the guess was wrong.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from baton.engine.kv.block_hash import HASH_BYTES

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

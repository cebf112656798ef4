"""The cached blocks that requests stored or found, from which stores below the pool are filled."""

from collections.abc import Iterable
from itertools import islice

from baton.engine.kv.block_hash import BlockHash

MAX_BLOCKS = 1 << 16  # of each kind; the oldest are forgotten first


class UsedBlocks:
    """Hashes of blocks since they were last taken: popular ones first, and of these the oldest.

    A block is popular if a second request found it, or if the request that computed it had found those before it.
    """

    def __init__(self) -> None:
        self._popular: dict[BlockHash, None] = {}
        self._others: dict[BlockHash, None] = {}

    def __len__(self) -> int:
        return len(self._popular) + len(self._others)

    def note(self, hashes: Iterable[BlockHash], is_popular: bool) -> None:
        """Add blocks; one that is there already may become popular, and keeps its place otherwise."""
        for block_hash in hashes:
            if is_popular:
                self._others.pop(block_hash, None)
                self._popular.setdefault(block_hash)
            elif block_hash not in self._popular:
                self._others.setdefault(block_hash)
        for kind in (self._popular, self._others):
            while len(kind) > MAX_BLOCKS:
                del kind[next(iter(kind))]

    def take(self, count: int) -> list[BlockHash]:
        """Remove and return the next blocks, at most `count`."""
        taken: list[BlockHash] = []
        for kind in (self._popular, self._others):
            first = list(islice(kind, count - len(taken)))
            for block_hash in first:
                del kind[block_hash]
            taken += first
        return taken

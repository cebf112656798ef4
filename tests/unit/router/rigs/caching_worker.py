"""A model of a worker's prefix cache: closed under prefixes, of limited size, with restarts."""

import random
from collections.abc import Sequence
from itertools import pairwise

from baton.engine.kv.block_hash import BlockHash

MAX_BLOCKS = 120


def longest_prefix(cached: set[BlockHash], hashes: Sequence[BlockHash]) -> int:
    """Return the length of the cached prefix in blocks, by definition."""
    return next((length for length in range(len(hashes), 0, -1) if cached.issuperset(hashes[:length])), 0)


class CachingWorker:
    """The cached blocks of a worker, and the changes that it has not reported yet."""

    def __init__(self, name: str, rng: random.Random, prompts: Sequence[Sequence[BlockHash]]) -> None:
        self.cached: set[BlockHash] = set()
        self.num_evicted = 0
        self._name = name
        self._life = 0
        self._rng = rng
        self._prompts = prompts
        self._told: set[BlockHash] = set()
        self._parents = {child: parent for prompt in prompts for parent, child in pairwise(prompt)}

    @property
    def incarnation(self) -> str:
        """The key of the current incarnation."""
        return f"{self._name}-{self._life}"

    def restart(self) -> None:
        """Restart with an empty cache."""
        self._life += 1
        self.cached, self._told = set(), set()

    def change(self) -> None:
        """Cache prefixes of a few prompts, and evict ends until there is room again."""
        for _ in range(self._rng.randint(1, 4)):
            prompt = self._rng.choice(self._prompts)
            self.cached.update(prompt[: self._rng.randint(0, len(prompt))])
        while len(self.cached) > MAX_BLOCKS or (self.cached and self._rng.random() < 0.5):
            inner = {self._parents.get(each) for each in self.cached}
            self.cached.remove(self._rng.choice(sorted(self.cached - inner)))
            self.num_evicted += 1

    def take_event(self) -> tuple[list[BlockHash], list[BlockHash]]:
        """Return the removed and stored blocks since the last event; some are both."""
        both = {each for each in self._told & self.cached if self._rng.random() < 0.1}
        removed, stored = self._told - self.cached | both, self.cached - self._told | both
        self._told = set(self.cached)
        return sorted(removed), sorted(stored)

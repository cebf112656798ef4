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
from collections.abc import Callable
from typing import Protocol

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

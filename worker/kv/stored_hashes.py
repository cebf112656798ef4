"""The blocks that a worker knows to be in the stores below its pool, for routers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from baton.engine.kv.block_hash import BlockHash

MAX_KNOWN = 1 << 20  # the oldest are forgotten first


@dataclass(slots=True)
class StoreChanges:
    """Hashes that were found or written, and those that were found missing; apply `lost` before `saved`."""

    saved: list[BlockHash] = field(default_factory=list)
    lost: list[BlockHash] = field(default_factory=list)


class StoredHashes:
    """Hashes of known blocks, and the changes since they were last taken.

    Others evict blocks from a store, and add some. So a hash may be wrong until the next lookup of its prompt.
    """

    def __init__(self, max_known: int = MAX_KNOWN) -> None:
        self._known: dict[BlockHash, None] = {}
        self._changes: dict[BlockHash, bool] = {}  # True: saved, False: lost
        self._max_known = max_known

    def add(self, hashes: Sequence[BlockHash]) -> None:
        """Note blocks that were written or found."""
        for block_hash in hashes:
            if block_hash not in self._known:
                self._known[block_hash] = None
                self._changes[block_hash] = True
        self.discard(list(islice(self._known, max(0, len(self._known) - self._max_known))))

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Note blocks that are missing, or behind a missing one."""
        for block_hash in hashes:
            if block_hash in self._known:
                del self._known[block_hash]
                self._changes[block_hash] = False

    def snapshot(self) -> list[BlockHash]:
        """Return all known hashes; call `take_changes` first, or it will report them again."""
        return list(self._known)

    def take_changes(self) -> StoreChanges:
        """Return the changes since the last call."""
        changes, self._changes = self._changes, {}
        return StoreChanges(
            [each for each, is_saved in changes.items() if is_saved],
            [each for each, is_saved in changes.items() if not is_saved],
        )

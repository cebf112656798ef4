"""The interface of stores: blocks of KV that outlive the pool, by key."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Key = bytes  # 16 bytes; a block's content hash, under which all workers of one namespace find it


class StoreUnavailable(Exception):
    """The store cannot be used now; the message says why in one line, without secrets."""


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Content and capacity of a store; 0: not known."""

    num_blocks: int
    num_bytes: int
    capacity_bytes: int


class KVStore(Protocol):
    """Blocks of one namespace: of one model, KV layout and data type, so that all have the same size.

    A block is never changed once it is stored. It may be missing at any time, since others evict blocks too. Calls
    block, and may come from several threads at once. They raise StoreUnavailable.
    """

    @property
    def name(self) -> str:
        """Name of the tier, such as `host`, `disk` or `redis`."""
        ...

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to be stored, without reading the blocks."""
        ...

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to be stored, without reading the blocks."""
        ...

    def read(self, key: Key, into: memoryview) -> bool:
        """Read a block into a writable buffer of exactly its size; False if it is missing or damaged.

        After False or an error the buffer's contents are undefined.
        """
        ...

    def write(self, key: Key, block: memoryview) -> int:
        """Store a block, unless it is there; return the number of bytes that were written, 0 if it was there."""
        ...

    def use(self) -> StoreUse:
        """Return what the store holds, from what is known without a long search."""
        ...

    def clear(self) -> int:
        """Delete all blocks of the namespace, which may take long; return their number."""
        ...

    def close(self) -> None:
        """Free what the store uses in this process; no call may follow or be in progress."""
        ...

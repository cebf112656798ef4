"""The part of other ranks in fetches from stores, and in the saving of blocks."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from baton.kvtransfer.store.store import Key


class RankFetch(Protocol):
    """A fetch of one request's blocks into the pool of one rank. `Ranks.clear` ends it."""

    @property
    def num_read(self) -> int:
        """Blocks, from the first on, that are in the pool."""
        ...

    @property
    def ended(self) -> "asyncio.Future[None]":
        """Done when no more blocks come; has the error, if it failed."""
        ...


class RankSave(Protocol):
    """The saving of a batch of blocks by one rank."""

    async def copied(self) -> None:
        """Return when the blocks are copied. Raises PeerLost."""
        ...

    async def write(self, keys: Sequence[Key], copies: Sequence[int]) -> None:
        """Queue some of the copies, by their numbers, for the rank's stores. Raises PeerLost."""
        ...


class StoringRank(Protocol):
    """A follower rank with the same stores as the first rank."""

    def fetch_stored(self, tiers: Sequence[int], keys: Sequence[Key], blocks: Sequence[int]) -> RankFetch:
        """Begin to read blocks, each from the store with the number in `tiers`. Raises PeerLost."""
        ...

    async def clear_stored(self, tier: int) -> int:
        """Delete all blocks of the store with this number; return the number of their shards.

        Raises StoreUnavailable, or PeerLost.
        """
        ...

    def save_stored(self, blocks: Sequence[int]) -> RankSave:
        """Begin to copy blocks. Raises PeerLost."""
        ...

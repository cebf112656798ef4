"""Tells every router what came to and went from a worker's prefix cache."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.block_hash import BlockHash
from engine.engine import Engine
from engine.prefix_cache import CacheChanges
from protos import worker_pb2
from rpc.engine_host import EngineHost

MAX_PENDING = 1 << 20  # hashes that a slow subscriber may lag behind


@dataclass(slots=True, eq=False)
class Subscription:
    """What one router has not been told yet."""

    stored: dict[BlockHash, None] = field(default_factory=dict)
    removed: dict[BlockHash, None] = field(default_factory=dict)
    sequence: int = 0
    is_lost: bool = False  # it lagged too far behind; its stream must end, so that it asks again

    def add(self, changes: CacheChanges) -> None:
        """Merges newer changes into the pending ones."""
        for block_hash in changes.removed:
            self.stored.pop(block_hash, None)
            self.removed[block_hash] = None
        for block_hash in changes.stored:
            self.stored[block_hash] = None
        self.is_lost = self.is_lost or len(self.stored) + len(self.removed) > MAX_PENDING

    def take(self) -> worker_pb2.CacheEvents | None:
        """The next message, or None if there is nothing to tell; the first one is the snapshot."""
        if not self.stored and not self.removed and self.sequence > 0:
            return None
        events = worker_pb2.CacheEvents(
            sequence=self.sequence, stored=b"".join(self.stored), removed=b"".join(self.removed)
        )
        self.stored, self.removed = {}, {}
        self.sequence += 1
        return events


class CacheFeed:
    """Owns the subscriptions to one engine's cache."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._subscriptions: list[Subscription] = []
        self._lock = asyncio.Lock()  # changes reach the subscriptions in the order in which they were taken

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[Subscription]:
        """A subscription that starts with a snapshot."""
        subscription = Subscription()
        async with self._lock:
            changes, snapshot = await self._host.call(_changes_and_snapshot)
            self._spread(changes)
            subscription.stored = dict.fromkeys(snapshot)
            self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    async def refresh(self) -> None:
        """Takes what changed since the last time."""
        async with self._lock:
            self._spread(await self._host.call(lambda engine: engine.blocks.cache.take_changes()))

    def _spread(self, changes: CacheChanges) -> None:
        for subscription in self._subscriptions:
            subscription.add(changes)


def _changes_and_snapshot(engine: Engine) -> tuple[CacheChanges, list[BlockHash]]:
    cache = engine.blocks.cache
    return cache.take_changes(), cache.snapshot()

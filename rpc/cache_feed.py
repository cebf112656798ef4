"""Tells every router what came to and went from a worker's prefix cache."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from baton.engine.block_hash import BlockHash
from baton.engine.engine import Engine
from baton.engine.prefix_cache import CacheChanges
from baton.protos import worker_pb2
from baton.rpc.engine_host import EngineHost

MAX_PENDING = 1 << 20  # hashes that a slow subscriber may lag behind


@dataclass(slots=True, eq=False)
class Subscription:
    """What one router has not been told yet."""

    stored: dict[BlockHash, None] = field(default_factory=dict)
    removed: dict[BlockHash, None] = field(default_factory=dict)
    sequence: int = 0
    is_lost: bool = False  # it lagged too far behind; its stream must end, so that it asks again
    has_ended: bool = False

    def add(self, changes: CacheChanges) -> None:
        """Merges newer changes into the pending ones; once it is lost, nothing is pending any more."""
        if self.is_lost:
            return
        for block_hash in changes.removed:
            self.stored.pop(block_hash, None)
            self.removed[block_hash] = None
        for block_hash in changes.stored:
            self.stored[block_hash] = None
        if len(self.stored) + len(self.removed) > MAX_PENDING:
            self.is_lost = True
            self.stored, self.removed = {}, {}

    def take(self) -> worker_pb2.CacheEvents | None:
        """The next message, or None if there is nothing to tell; the first one is the snapshot."""
        if self.is_lost or (not self.stored and not self.removed and self.sequence > 0):
            return None
        events = worker_pb2.CacheEvents(
            sequence=self.sequence, stored=b"".join(self.stored), removed=b"".join(self.removed)
        )
        self.stored, self.removed = {}, {}
        self.sequence += 1
        return events


@dataclass(frozen=True, slots=True)
class CacheState:
    """What changed since the last look, and what the cache holds now."""

    changes: CacheChanges
    snapshot: list[BlockHash]


class CacheFeed:
    """Owns the subscriptions to one engine's cache.

    What the engine hands out it hands out once. So it is spread in the callbacks of its futures, which run in the
    engine's order, whether or not the stream that asked is still there.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._subscriptions: list[Subscription] = []

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[Subscription]:
        """A subscription that starts with a snapshot."""
        subscription = Subscription()

        def begin(state: "asyncio.Future[CacheState]") -> None:
            if not state.cancelled() and state.exception() is None:
                self._spread(state.result().changes)
                if not subscription.has_ended:
                    subscription.stored = dict.fromkeys(state.result().snapshot)
                    self._subscriptions.append(subscription)

        asking = self._host.call(_state)
        asking.add_done_callback(begin)
        try:
            await asyncio.shield(asking)
            yield subscription
        finally:
            subscription.has_ended = True
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    async def refresh(self) -> None:
        """Takes what changed since the last time."""

        def spread(changes: "asyncio.Future[CacheChanges]") -> None:
            if not changes.cancelled() and changes.exception() is None:
                self._spread(changes.result())

        asking = self._host.call(lambda engine: engine.blocks.cache.take_changes())
        asking.add_done_callback(spread)
        await asyncio.shield(asking)

    def _spread(self, changes: CacheChanges) -> None:
        for subscription in self._subscriptions:
            subscription.add(changes)


def _state(engine: Engine) -> CacheState:
    return CacheState(engine.blocks.cache.take_changes(), engine.blocks.cache.snapshot())

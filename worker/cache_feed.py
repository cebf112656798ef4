"""Tells every router what came to and went from a worker's prefix cache."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from baton.engine.engine import Engine
from baton.engine.kv.block_hash import HASH_BYTES, BlockHash
from baton.engine.kv.prefix_cache import CacheChanges
from baton.protos import worker_pb2
from baton.rpc.grpc_options import MAX_MESSAGE_BYTES
from baton.worker.engine_host import EngineHost

MAX_PENDING = 1 << 20  # hashes that a slow subscriber may lag behind
MAX_MESSAGE_HASHES = MAX_MESSAGE_BYTES // HASH_BYTES


@dataclass(slots=True, eq=False)
class Subscription:
    """What one router has not been told yet."""

    stored: dict[BlockHash, None] = field(default_factory=dict)
    removed: dict[BlockHash, None] = field(default_factory=dict)
    sequence: int = 0
    num_snapshot: int = 0  # hashes that were there when it began, which do not count as a lag
    is_waiting: bool = False  # for the snapshot; nothing is sent until it is there
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
        if len(self.stored) + len(self.removed) > MAX_PENDING + self.num_snapshot:
            self.is_lost = True
            self.stored, self.removed = {}, {}

    def take(self) -> worker_pb2.CacheEvents | None:
        """The next message, or None if there is nothing to tell; the first one begins the snapshot.

        What one message does not hold is pending for the next one: removed hashes go first, since a hash that is stored
        again stands among both.
        """
        if self.is_waiting or self.is_lost or (not self.is_pending and self.sequence > 0):
            return None
        removed = _take(self.removed, MAX_MESSAGE_HASHES)
        stored = _take(self.stored, MAX_MESSAGE_HASHES - len(removed))
        events = worker_pb2.CacheEvents(
            sequence=self.sequence, stored=b"".join(stored), removed=b"".join(removed), more=self.is_pending
        )
        self.sequence += 1
        return events

    @property
    def is_pending(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.stored or self.removed)


def _take(hashes: dict[BlockHash, None], count: int) -> list[BlockHash]:
    """The first ones, taken out."""
    if len(hashes) <= count:
        taken = list(hashes)
        hashes.clear()
        return taken
    taken = list(islice(hashes, count))
    for block_hash in taken:
        del hashes[block_hash]
    return taken


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
        """A subscription that starts with a snapshot; while the engine waits for ranks, the snapshot comes later."""
        subscription = Subscription(is_waiting=True)

        def begin(state: "asyncio.Future[CacheState]") -> None:
            if not state.cancelled() and state.exception() is None:
                self._spread(state.result().changes)
                if not subscription.has_ended:
                    subscription.stored = dict.fromkeys(state.result().snapshot)
                    subscription.num_snapshot = len(subscription.stored)
                    subscription.is_waiting = False
                    self._subscriptions.append(subscription)

        asking = self._host.call(_state)
        asking.add_done_callback(begin)
        try:
            if await self._host.wait_unless_short(asking):
                asking.result()
            yield subscription
        finally:
            subscription.has_ended = True
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    async def refresh(self) -> None:
        """Takes what changed since the last time, unless the engine waits for ranks."""
        if self._host.is_short_of_ranks:
            return

        def spread(changes: "asyncio.Future[CacheChanges]") -> None:
            if not changes.cancelled() and changes.exception() is None:
                self._spread(changes.result())

        asking = self._host.call(lambda engine: engine.blocks.cache.take_changes())
        asking.add_done_callback(spread)
        if await self._host.wait_unless_short(asking):
            asking.result()

    def _spread(self, changes: CacheChanges) -> None:
        for subscription in self._subscriptions:
            subscription.add(changes)


def _state(engine: Engine) -> CacheState:
    return CacheState(engine.blocks.cache.take_changes(), engine.blocks.cache.snapshot())

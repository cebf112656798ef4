"""The feed of prefix-cache events: blocks stored and removed, for every router."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash
from baton.engine.kv.prefix_cache import CacheChanges
from baton.protos import worker_pb2
from baton.rpc.grpc_options import MAX_MESSAGE_BYTES
from baton.worker.base import EngineCalls, Host
from baton.worker.kv.stored_hashes import StoreChanges, StoredHashes

MAX_PENDING = 1 << 20  # hashes that a slow subscriber has not received yet
NO_CHANGES = StoreChanges()
MAX_MESSAGE_HASHES = MAX_MESSAGE_BYTES // HASH_BYTES


@dataclass(slots=True, eq=False)
class Subscription:
    """Cache changes that one router has not received yet."""

    stored: dict[BlockHash, None] = field(default_factory=dict)
    removed: dict[BlockHash, None] = field(default_factory=dict)
    saved: dict[BlockHash, None] = field(default_factory=dict)  # in stores below the pool
    lost: dict[BlockHash, None] = field(default_factory=dict)
    sequence: int = 0
    num_snapshot: int = 0  # hashes of the first snapshot, which do not count as lag
    is_waiting: bool = False  # for the snapshot; nothing is sent before it
    is_lost: bool = False  # lagged by more than MAX_PENDING; its stream must end, and the router subscribes again
    has_ended: bool = False

    def add(self, changes: CacheChanges, below: StoreChanges = NO_CHANGES) -> None:
        """Merge newer changes into the pending ones; `below`: of the stores. A lost subscription keeps none."""
        if self.is_lost:
            return
        _merge(self.removed, self.stored, changes.removed, changes.stored)
        _merge(self.lost, self.saved, below.lost, below.saved)
        if sum(map(len, self._pending)) > MAX_PENDING + self.num_snapshot:
            self.is_lost = True
            for pending in self._pending:
                pending.clear()

    def take(self) -> worker_pb2.CacheEvents | None:
        """Return the next message, or None if nothing is pending. The first message begins the snapshot.

        Hashes beyond the limit of one message stay pending. Removed hashes go first, since a hash that was removed
        and stored again is in both sets; so do lost ones.
        """
        if self.is_waiting or self.is_lost or (not self.is_pending and self.sequence > 0):
            return None
        left, taken = MAX_MESSAGE_HASHES, []
        for pending in self._pending:
            taken.append(_take(pending, left))
            left -= len(taken[-1])
        removed, stored, lost, saved = map(b"".join, taken)
        events = worker_pb2.CacheEvents(
            sequence=self.sequence, stored=stored, removed=removed, saved=saved, lost=lost, more=self.is_pending
        )
        self.sequence += 1
        return events

    @property
    def is_pending(self) -> bool:
        """Whether there are changes to send."""
        return any(self._pending)

    @property
    def _pending(self) -> tuple[dict[BlockHash, None], ...]:
        return self.removed, self.stored, self.lost, self.saved


def _merge(
    gone: dict[BlockHash, None], here: dict[BlockHash, None], newly_gone: list[BlockHash], newly_here: list[BlockHash]
) -> None:
    for block_hash in newly_gone:
        here.pop(block_hash, None)
        gone[block_hash] = None
    here.update(dict.fromkeys(newly_here))


def _take(hashes: dict[BlockHash, None], count: int) -> list[BlockHash]:
    """Remove and return the first `count` hashes."""
    if len(hashes) <= count:
        first = list(hashes)
        hashes.clear()
        return first
    first = list(islice(hashes, count))
    for block_hash in first:
        del hashes[block_hash]
    return first


@dataclass(frozen=True, slots=True)
class CacheState:
    """Changes since the last call, and all hashes that the cache holds now."""

    changes: CacheChanges
    snapshot: list[BlockHash]


class CacheFeed:
    """The subscriptions to one engine's cache.

    The engine returns each change only once. The callbacks of its futures therefore distribute it to all
    subscriptions: they run in the engine's order, even if the stream that made the call has ended.
    """

    def __init__(self, host: Host, below: StoredHashes | None = None) -> None:
        """below: hashes of blocks in the stores below the pool."""
        self._host = host
        self._below = below or StoredHashes()
        self._subscriptions: list[Subscription] = []

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[Subscription]:
        """Yield a subscription that starts with a snapshot; it is delayed while the engine waits for ranks."""
        subscription = Subscription(is_waiting=True)

        def begin(state: "asyncio.Future[CacheState]") -> None:
            if not state.cancelled() and state.exception() is None:
                self._distribute(state.result().changes)
                if not subscription.has_ended:
                    subscription.stored = dict.fromkeys(state.result().snapshot)
                    subscription.saved = dict.fromkeys(self._below.snapshot())
                    subscription.num_snapshot = len(subscription.stored) + len(subscription.saved)
                    subscription.is_waiting = False
                    self._subscriptions.append(subscription)

        pending = self._host.call(_state)
        pending.add_done_callback(begin)
        try:
            if await self._host.wait_unless_short(pending):
                pending.result()
            yield subscription
        finally:
            subscription.has_ended = True
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    async def refresh(self) -> None:
        """Distribute the changes since the last call; no-op while the engine waits for ranks."""
        if self._host.is_short_of_ranks:
            return

        def distribute(changes: "asyncio.Future[CacheChanges]") -> None:
            if not changes.cancelled() and changes.exception() is None:
                self._distribute(changes.result())

        pending = self._host.call(lambda engine: engine.blocks.cache.take_changes())
        pending.add_done_callback(distribute)
        if await self._host.wait_unless_short(pending):
            pending.result()

    def _distribute(self, changes: CacheChanges) -> None:
        below = self._below.take_changes()
        for subscription in self._subscriptions:
            subscription.add(changes, below)


def _state(engine: EngineCalls) -> CacheState:
    return CacheState(engine.blocks.cache.take_changes(), engine.blocks.cache.snapshot())

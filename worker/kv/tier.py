"""One store below a worker's KV pool."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from baton.kvtransfer.store.store import KVStore
from baton.worker.kv.tier_price import FetchSpeed
from baton.worker.reporting import TierCounters


@dataclass(slots=True, eq=False)
class Tier:
    """A store with its measured speed and its counters."""

    store: KVStore
    shared_name: str = ""  # equal for all workers that share the store
    is_memory: bool = False  # reads are copies of host memory, which do not hang
    counters: TierCounters = field(default_factory=TierCounters)
    speed: FetchSpeed = field(default_factory=FetchSpeed)
    late: "set[asyncio.Future[Any]]" = field(default_factory=set)  # running calls whose callers have given up

    def note_use(self) -> None:
        """Record what the store holds. Blocks like a read of a file. Raises StoreUnavailable."""
        use, counters = self.store.use(), self.counters
        counters.num_blocks, counters.num_bytes = use.num_blocks, use.num_bytes
        counters.capacity_bytes = use.capacity_bytes

    def give_up(self, call: "asyncio.Future[Any]") -> None:
        """Use this tier no more until a call has ended that takes too long; no-op for a call that has."""
        if not call.done():
            self.late.add(call)
            call.add_done_callback(self._end_late)

    def _end_late(self, call: "asyncio.Future[Any]") -> None:
        self.late.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not log it

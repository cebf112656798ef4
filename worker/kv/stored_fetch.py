"""The fetch of one request's stored blocks into its own blocks, on all ranks of a worker."""

import asyncio
import logging
import time
from collections.abc import Sequence

from baton.engine.engine import Engine
from baton.engine.kv.groups import BlockPlace
from baton.engine.kv.used_blocks import FetchedBlocks
from baton.engine.request import BlockId, Request
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.store.store import Key, StoreUnavailable
from baton.kvtransfer.store.stored_read import StoredRead
from baton.kvtransfer.threads import run_in_thread
from baton.worker.engine_host import EngineHost
from baton.worker.kv.lookup import StoredPrefix
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.stored_keys import block_key
from baton.worker.kv.storing_rank import RankFetch, StoringRank
from baton.worker.kv.tier import Tier
from baton.worker.kv.tier_price import is_slow, patience_s
from baton.worker.reporting import ReadRate

logger = logging.getLogger(__name__)

CHECK_S = 0.01  # between two checks of a running fetch


class OwnFetch:
    """The first rank's part of a fetch; a RankFetch. Begins at once, on a thread."""

    def __init__(self, read: StoredRead) -> None:
        self.read = read
        self.ended = run_in_thread("kv-fetch", read.run)

    @property
    def num_read(self) -> int:
        """Blocks, from the first on, that are in the pool."""
        return len(self.read.durations_s)


class StoredFetch:
    """The stored blocks of one request, and their fetch in transfer order."""

    def __init__(
        self,
        host: EngineHost,
        stores: RankStores,
        request: Request,
        found: StoredPrefix,
        fetches: ReadRate,
        slots: asyncio.Semaphore,
        followers: Sequence[StoringRank] = (),
    ) -> None:
        """fetches: counts what is fetched; slots: of fetches at once."""
        self._host = host
        self._stores = stores
        self._request = request
        self._found = found
        self._fetches = fetches
        self._slots = slots
        self._followers = followers
        self._block_size = host.config.block_size
        self._order = host.kv_groups.transfer_order(found.num_blocks * self._block_size)
        self._block_s = 0.0  # to compute a block here; 0: not known
        self._num_known = 0  # blocks of the prefix that the pool had
        self._own: OwnFetch | None = None
        self._others: list[RankFetch] = []
        self._places = self._order.places()
        self._found_tiers = [found.tiers[place] for place in self._places]
        self._tiers: list[Tier] = []  # of the blocks that are fetched, in transfer order

    @property
    def tokens_by_tier(self) -> dict[str, int]:
        """Fetched tokens, by the name of the tier that has their block of the first KV group."""
        names = [tier.store.name for tier in self._fetched.values()]
        return {name: names.count(name) * self._block_size for name in dict.fromkeys(names)}

    def add(self) -> "asyncio.Future[None]":
        """Queue the request in the engine. It receives the stored blocks if that pays; see `Request.receives_kv`.

        Raises what `Engine.add` does.
        """
        return self._host.call(self._enter)

    async def run(self) -> None:
        """Return when all blocks are here, one is missing, or the rest is computed sooner.

        The request's block tables must be allocated. Raises StoreUnavailable or TransferError.
        """
        request = self._request
        self._num_known = min(request.num_computed_tokens // self._block_size, self._found.num_blocks)
        if self._num_known == self._found.num_blocks:  # the pool has them all by now
            return
        start = self._order.num_before(self._num_known)
        places, self._tiers = self._places[start:], self._found_tiers[start:]
        keys = [block_key(request.block_hashes[place.index], place.number) for place in places]
        blocks = self._order.blocks(request.block_tables, self._num_known, state=request.state_blocks)
        try:
            async with asyncio.timeout(patience_s(self._compute_s)):
                await self._slots.acquire()
        except TimeoutError:
            self._tiers[0].counters.slow_fetches += 1
            return
        try:
            await self._fetch(keys, blocks)
        finally:
            self._slots.release()

    def outcome(self, task: "asyncio.Task[None]") -> Received:
        """Return what was fetched. A failure is logged and counted; only the missing blocks must be computed."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreUnavailable):
            self._tiers[self._num_read].counters.failures += 1
        if isinstance(error, StoreUnavailable | TransferError):
            logger.warning("a fetch of stored KV failed, and the rest is computed: %s", error)
        elif error is not None:
            logger.error("a fetch of stored KV failed, and the rest is computed", exc_info=error)
        return Received(self._num_usable * self._block_size, fetched=self._fetched_blocks)

    @property
    def _fetched_blocks(self) -> FetchedBlocks:
        """Usable blocks that came from the fastest store, by the tier of their block of the first KV group."""
        tiers, hashes = self._stores.tiers, self._request.block_hashes
        fetched = [hashes[index] for index, tier in self._fetched.items() if tier is tiers[0]]
        return FetchedBlocks(fetched, is_only_store=len(tiers) == 1)

    @property
    def _fetched(self) -> dict[int, Tier]:
        """Tiers of the usable blocks of the first KV group that were fetched, by their index in the block table.

        None if no fetch began: the pool may have a longer prefix by then than the stores had at the lookup.
        """
        if self._own is None:
            return {}
        return {index: self._found.tiers[BlockPlace(index, 0)] for index in range(self._num_known, self._num_usable)}

    @property
    def _compute_s(self) -> float:
        """Seconds to compute what the pool lacks."""
        return (self._found.num_blocks - self._num_known) * self._block_s

    @property
    def _num_read(self) -> int:
        """Blocks, in transfer order, that all ranks have fetched."""
        if self._own is None:
            return 0
        return min(self._own.num_read, *(each.num_read for each in self._others), len(self._tiers))

    @property
    def _num_usable(self) -> int:
        """Blocks of the prefix whose KV is here."""
        num_known = self._request.num_computed_tokens // self._block_size if self._own is None else self._num_known
        return self._order.num_usable(self._order.num_before(num_known) + self._num_read, num_known)

    async def _fetch(self, keys: Sequence[Key], blocks: Sequence[BlockId]) -> None:
        started_at_s = time.monotonic()
        read = self._stores.read(self._tiers, keys, blocks)
        numbers = {id(tier): number for number, tier in enumerate(self._stores.tiers)}
        tiers = [numbers[id(tier)] for tier in self._tiers]
        self._others = [each.fetch_stored(tiers, keys, blocks) for each in self._followers]
        own = self._own = OwnFetch(read)  # the last: no block counts as fetched unless all ranks fetch it
        try:
            await self._wait(started_at_s)
        finally:
            own.read.abandon()  # the other ranks' fetches end when the blocks are cleared
            is_reading = own.num_read < len(self._tiers) and not own.ended.done()
            if is_reading:
                self._tiers[own.num_read].give_up(own.ended)
            elif own.ended.done():
                own.ended.exception()  # retrieved, so that asyncio does not log it
            self._note(own, is_reading, time.monotonic() - started_at_s)

    async def _wait(self, started_at_s: float) -> None:
        """Wait for all ranks, until one can read no more, or the rest is computed sooner."""
        assert self._own is not None
        fetches: list[RankFetch] = [self._own, *self._others]
        while (num_read := self._num_read) < len(self._tiers):
            if any(each.ended.done() and each.num_read == num_read for each in fetches):
                break
            if is_slow(num_read, len(self._tiers), time.monotonic() - started_at_s, self._compute_s):
                self._tiers[num_read].counters.slow_fetches += 1
                return
            reading = [each.ended for each in fetches if not each.ended.done()]
            await asyncio.wait(reading, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        for each in fetches:
            if each.ended.done():
                each.ended.result()

    def _enter(self, engine: Engine) -> None:
        rate = engine.prefill_tokens_per_s
        self._block_s = self._block_size / rate if rate else 0.0
        num_cached = engine.blocks.num_cached_tokens(self._request) // self._block_size
        self._request.receives_kv = num_cached < self._found.num_blocks and self._pays(num_cached)
        engine.add(self._request)

    def _pays(self, num_cached: int) -> bool:
        """Return whether each tier's share of the missing blocks is fetched sooner than computed."""
        missing = self._found_tiers[self._order.num_before(num_cached) :]
        counts = {tier.store.name: (tier, missing.count(tier)) for tier in missing}.values()
        compute_s = (self._found.num_blocks - num_cached) * self._block_s
        now_s = time.monotonic()
        return all(tier.speed.pays(count, compute_s * count / len(missing), now_s) for tier, count in counts)

    def _note(self, own: OwnFetch, is_reading: bool, took_s: float) -> None:
        """Count what each tier has brought, and how fast it was; an unfinished block counts as long as it took.

        With several ranks, blocks count the time until all have them.
        """
        now_s, durations_s = time.monotonic(), list(own.read.durations_s[: self._num_read])
        num_read = len(durations_s)
        if self._others and num_read:
            factor = max(1.0, took_s / sum(durations_s))
            durations_s = [each * factor for each in durations_s]
        if is_reading:
            durations_s.append(now_s - own.read.block_at_s)
        for tier in {tier.store.name: tier for tier in self._tiers[: len(durations_s)]}.values():
            own_s = [each for each, of in zip(durations_s, self._tiers, strict=False) if of is tier]
            tier.speed.note(own_s, now_s)
            num_blocks = self._tiers[:num_read].count(tier)
            num_bytes = num_blocks * self._host.block_bytes
            tier.counters.fetched_blocks += num_blocks
            tier.counters.fetched_bytes += num_bytes
            tier.counters.fetch_seconds += sum(own_s)
            self._fetches.note(num_bytes, sum(own_s))

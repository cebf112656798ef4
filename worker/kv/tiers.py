"""The stores below a worker's KV pool: what requests fetch from them instead of computing it.

1. Before a request enters the engine, its blocks are looked up in the stores, fastest first.
2. If a fetch costs less than computing what the pool lacks, the request receives it like KV of another worker.
3. A thread reads block by block into the request's own blocks, while the engine goes on with its steps.
4. The fetch ends with the last stored block, or as soon as the rest is computed sooner. The engine computes the rest.

`BlockSaver` fills the stores.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from baton.engine.engine import Engine
from baton.engine.kv.block_hash import BlockHash
from baton.engine.request import BlockId, Request
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.store.pool_blocks import PoolBlocks
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.store.stored_read import StoredRead
from baton.kvtransfer.threads import run_in_thread
from baton.rpc.status import Unavailable
from baton.worker.base import no_tier
from baton.worker.engine_host import EngineHost
from baton.worker.kv.block_saver import BlockSaver
from baton.worker.kv.stored_hashes import StoredHashes
from baton.worker.kv.tier import Tier
from baton.worker.kv.tier_price import is_slow, patience_s
from baton.worker.reporting import ReadRate

logger = logging.getLogger(__name__)

LOOKUP_S = 0.05  # a lookup that takes longer is given up
CHECK_S = 0.01  # between two checks of a running fetch
MIN_BLOCKS = 2  # fewer are computed as quickly
LATE_S = 2.0  # for late calls when the worker ends: a store with one is not closed
MAX_FETCHES = 4  # at once, each on a thread; the next ones wait as long as for a first block
MAX_PASSES = 4  # over the stores, when each has other parts of a prompt


class Lookup:
    """A lookup of a prefix in the tiers by a thread; `found` is at any time what it has found so far."""

    def __init__(self, tiers: Sequence[Tier], hashes: Sequence[BlockHash]) -> None:
        self.found: list[Tier] = []  # the tier of each block, up to the first that none has
        self.asked: Tier | None = None  # store whose response it waits for
        self.is_given_up = False  # the next tier is not asked
        self._tiers = tiers
        self._hashes = hashes

    def run(self) -> None:
        """Look up the blocks; for a thread."""
        for _ in range(MAX_PASSES):
            before = len(self.found)
            for tier in self._tiers:
                if len(self.found) < len(self._hashes) and not self.is_given_up:
                    self.asked = tier
                    self.found += [tier] * self._count(tier)
            if len(self.found) == before:
                return

    def _count(self, tier: Tier) -> int:
        try:
            return tier.store.count(self._hashes[len(self.found) :])
        except StoreUnavailable as error:
            tier.counters.failures += 1
            logger.debug("no lookup in the %s tier: %s", tier.store.name, error)
            return 0


class KVTiers:
    """The stores of one worker, fastest first. Used from the event loop."""

    def __init__(
        self, host: EngineHost, pool: PoolBlocks, tiers: Sequence[Tier], fetches: ReadRate | None = None
    ) -> None:
        """fetches: counts what is fetched."""
        self._host = host
        self._pool = pool
        self._fetches = fetches or ReadRate()
        self._slots = asyncio.Semaphore(MAX_FETCHES)
        self._tiers = tiers
        self.names = [tier.shared_name for tier in tiers]
        self.hashes = StoredHashes()
        self._saver = BlockSaver(host, pool, tiers, self.hashes.add)

    def start(self) -> None:
        """Start saving the pool's blocks."""
        self._saver.start()

    async def close(self) -> None:
        """Save what is left, and close the stores; the engine must still run, and no fetch."""
        await self._saver.close()
        if late := [call for tier in self._tiers for call in tier.late]:
            await asyncio.wait(late, timeout=LATE_S)
        for tier in self._tiers:
            if all(call.done() for call in tier.late):
                await asyncio.to_thread(tier.store.close)

    async def clear(self, name: str) -> int:
        """Delete the blocks of a store; return their number. Raises NotFound, or Unavailable if the store fails."""
        tier = next((tier for tier in self._tiers if tier.store.name == name), None)
        if tier is None:
            raise no_tier(name, [tier.store.name for tier in self._tiers])
        try:
            num_blocks = await run_in_thread("kv-clear", tier.store.clear)
        except (StoreUnavailable, RuntimeError) as error:
            raise Unavailable(f"the {name} tier was not cleared: {error}") from error
        self.hashes.discard(self.hashes.snapshot())  # what other stores have is found again at the next lookups
        return num_blocks

    async def find(self, request: Request) -> "StoredFetch | None":
        """Look up what the stores have of a request's prefix; None if that is too little, or cannot be used."""
        block_size = self._host.config.block_size
        num_blocks = (request.num_tokens - 1) // block_size  # at least one token is left to compute
        tiers = [tier for tier in self._tiers if not tier.late]
        is_longer = request.num_tokens >= self._host.finish_rule.max_model_len  # than the engine takes
        if request.receives_kv or request.needs_whole_prompt or num_blocks < MIN_BLOCKS or not tiers or is_longer:
            return None
        hashes = request.hash_blocks(block_size)[:num_blocks]
        lookup = Lookup(tiers, hashes)
        try:
            looking = run_in_thread("kv-lookup", lookup.run)
        except RuntimeError as error:  # the process has as many threads as it may
            logger.warning("stored KV is not looked up: %s", error)
            return None
        try:
            await asyncio.wait((looking,), timeout=LOOKUP_S)
        finally:
            lookup.is_given_up = True
            (lookup.asked or tiers[0]).give_up(looking)
        if looking.done() and (failure := looking.exception()) is not None:
            logger.error("a lookup of stored KV failed", exc_info=failure)
        found = list(lookup.found)
        self.hashes.add(hashes[: len(found)])
        if looking.done() and len(tiers) == len(self._tiers):  # all have been asked
            self.hashes.discard(hashes[len(found) :])
        if len(found) < MIN_BLOCKS:
            return None
        return StoredFetch(self._host, self._pool, request, found, self._fetches, self._slots)


class StoredFetch:
    """The stored blocks of one request, and their fetch into its own blocks."""

    def __init__(
        self,
        host: EngineHost,
        pool: PoolBlocks,
        request: Request,
        found: Sequence[Tier],
        fetches: ReadRate,
        slots: asyncio.Semaphore,
    ) -> None:
        """found: the tier that has each block, from the request's first block on; slots: of fetches at once."""
        self._fetches = fetches
        self._slots = slots
        self._host = host
        self._pool = pool
        self._request = request
        self._found = found
        self._hashes = request.block_hashes[: len(found)]
        self._block_size = host.config.block_size
        self._block_s = 0.0  # to compute a block here; 0: not known
        self._num_known = 0  # blocks that the pool had
        self._read: StoredRead | None = None

    @property
    def tokens_by_tier(self) -> dict[str, int]:
        """Fetched tokens, by the name of the tier."""
        num_read = len(self._read.durations_s) if self._read is not None else 0
        names = [tier.store.name for tier in self._found[self._num_known : self._num_known + num_read]]
        return {name: names.count(name) * self._block_size for name in dict.fromkeys(names)}

    def add(self) -> "asyncio.Future[None]":
        """Queue the request in the engine. It receives the stored blocks if that pays; see `Request.receives_kv`.

        Raises what `Engine.add` does.
        """
        return self._host.call(self._enter)

    async def run(self) -> None:
        """Return when all blocks are here, one is missing, or the rest is computed sooner.

        The request's block table must be allocated. Raises StoreUnavailable or TransferFailed.
        """
        self._num_known = min(self._request.num_computed_tokens // self._block_size, len(self._found))
        tiers = self._found[self._num_known :]
        blocks = self._request.block_table[self._num_known : len(self._found)]
        if not tiers:  # the pool has them all by now
            return
        compute_s = len(tiers) * self._block_s
        try:
            async with asyncio.timeout(patience_s(compute_s)):
                await self._slots.acquire()
        except TimeoutError:
            tiers[0].counters.slow_fetches += 1
            return
        try:
            await self._fetch(tiers, blocks, compute_s)
        finally:
            self._slots.release()

    async def _fetch(self, tiers: Sequence[Tier], blocks: Sequence[BlockId], compute_s: float) -> None:
        read = StoredRead(self._pool, [tier.store for tier in tiers], self._hashes[self._num_known :], blocks)
        self._read = read
        started_at_s = time.monotonic()
        reading = run_in_thread("kv-fetch", read.run)
        try:
            while True:
                await asyncio.wait((reading,), timeout=CHECK_S)
                num_read, elapsed_s = len(read.durations_s), time.monotonic() - started_at_s
                if reading.done() or num_read == len(tiers):
                    break
                if is_slow(num_read, len(tiers), elapsed_s, compute_s):
                    tiers[num_read].counters.slow_fetches += 1
                    return
            await asyncio.wait((reading,))
            reading.result()
        finally:
            num_read = read.abandon()
            is_reading = num_read < len(tiers) and not reading.done()
            if is_reading:
                tiers[num_read].give_up(reading)
            elif reading.done():
                reading.exception()  # retrieved, so that asyncio does not log it
            self._note(tiers, read, is_reading)

    def outcome(self, task: "asyncio.Task[None]") -> Received:
        """Return what was fetched. A failure is logged and counted; only the missing blocks must be computed."""
        num_read = self._read.abandon() if self._read is not None else 0
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreUnavailable):
            self._found[self._num_known + num_read].counters.failures += 1
        if isinstance(error, StoreUnavailable | TransferError):
            logger.warning("a fetch of stored KV failed, and the rest is computed: %s", error)
        elif error is not None:
            logger.error("a fetch of stored KV failed, and the rest is computed", exc_info=error)
        num_known = self._request.num_computed_tokens // self._block_size
        return Received((num_known + num_read) * self._block_size)

    def _enter(self, engine: Engine) -> None:
        rate = engine.prefill_tokens_per_s
        self._block_s = self._block_size / rate if rate else 0.0
        num_cached = engine.blocks.num_cached_tokens(self._request) // self._block_size
        self._request.receives_kv = self._pays(self._found[num_cached:])
        engine.add(self._request)

    def _pays(self, missing: Sequence[Tier]) -> bool:
        """Return whether each tier's share of the missing blocks is fetched sooner than computed."""
        counts = {tier.store.name: (tier, missing.count(tier)) for tier in missing}.values()
        now_s = time.monotonic()
        return bool(counts) and all(tier.speed.pays(count, count * self._block_s, now_s) for tier, count in counts)

    def _note(self, tiers: Sequence[Tier], read: StoredRead, is_reading: bool) -> None:
        """Count what each tier has brought, and how fast it was; an unfinished block counts as long as it took."""
        now_s, durations_s = time.monotonic(), list(read.durations_s)
        num_read = len(durations_s)
        if is_reading:
            durations_s.append(now_s - read.block_at_s)
        for tier in {tier.store.name: tier for tier in tiers[: len(durations_s)]}.values():
            own_s = [each for each, of in zip(durations_s, tiers, strict=False) if of is tier]
            tier.speed.note(own_s, now_s)
            num_blocks = tiers[:num_read].count(tier)
            tier.counters.fetched_blocks += num_blocks
            tier.counters.fetched_bytes += num_blocks * self._pool.block_bytes
            tier.counters.fetch_seconds += sum(own_s)
            self._fetches.note(num_blocks * self._pool.block_bytes, sum(own_s))

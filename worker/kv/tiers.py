"""The stores below a worker's KV pool: what requests fetch from them instead of computing it.

1. Before a request enters the engine, its blocks are looked up in the stores, fastest first. A slow lookup may take a
   tenth of the time to compute what the pool lacks.
2. If a fetch costs less than computing what the pool lacks, the request receives it like KV of another worker.
3. A thread of each rank reads block by block into the request's own blocks, while the engine goes on with its steps.
4. The fetch ends with the last stored block, or as soon as the rest is computed sooner. The engine computes the rest.

`BlockSaver` fills the stores.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from baton.engine.engine import Engine
from baton.engine.request import Request
from baton.kvtransfer.errors import PeerLost
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.threads import run_in_thread
from baton.rpc.status import Unavailable
from baton.worker.base import no_tier
from baton.worker.engine_host import EngineHost
from baton.worker.kv.block_saver import BlockSaver
from baton.worker.kv.lookup import Lookup
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.stored_fetch import StoredFetch
from baton.worker.kv.stored_hashes import StoredHashes
from baton.worker.kv.storing_rank import StoringRank
from baton.worker.kv.tier_price import LONGEST_LOOKUP_S, lookup_patience_s
from baton.worker.reporting import ReadRate

logger = logging.getLogger(__name__)

LOOKUP_S = 0.05  # for any lookup; one that takes longer is waited for if it may save enough
MIN_BLOCKS = 2  # fewer are computed as quickly
LATE_S = 2.0  # for late calls when the worker ends: a store with one is not closed
MAX_FETCHES = 4  # at once, each on a thread; the next ones wait as long as for a first block


class KVTiers:
    """The stores of one worker, fastest first. Used from the event loop."""

    def __init__(
        self,
        host: EngineHost,
        stores: RankStores,
        fetches: ReadRate | None = None,
        followers: Sequence[StoringRank] = (),
    ) -> None:
        """stores: of the first rank; fetches: counts what is fetched; followers: have the same stores."""
        self._host = host
        self._stores = stores
        self._followers = followers
        self._fetches = fetches or ReadRate()
        self._slots = asyncio.Semaphore(MAX_FETCHES)
        self._tiers = stores.tiers
        self.names = [tier.shared_name for tier in self._tiers]
        self.hashes = StoredHashes()
        self._saver = BlockSaver(host, stores, self.hashes.add, followers)

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
        """Delete the blocks of a store on all ranks; return their number.

        Raises NotFound, or Unavailable if the store fails.
        """
        names = [tier.store.name for tier in self._tiers]
        if name not in names:
            raise no_tier(name, names)
        number = names.index(name)
        try:
            clearing = run_in_thread("kv-clear", self._tiers[number].store.clear)
            counts = await asyncio.gather(clearing, *(each.clear_stored(number) for each in self._followers))
        except (StoreUnavailable, PeerLost, RuntimeError) as error:
            raise Unavailable(f"the {name} tier was not cleared: {error}") from error
        num_blocks = -(-sum(counts) // self._stores.num_shards)
        self.hashes.discard(self.hashes.snapshot())  # what other stores have is found again at the next lookups
        return num_blocks

    async def find(self, request: Request) -> StoredFetch | None:
        """Look up what the stores have of a request's prefix; None if that is too little, or cannot be used."""
        block_size = self._host.config.block_size
        num_blocks = (request.num_tokens - 1) // block_size  # at least one token is left to compute
        tiers = [tier for tier in self._tiers if not tier.late]
        is_longer = request.num_tokens >= self._host.finish_rule.max_model_len  # than the engine takes
        if request.receives_kv or request.needs_whole_prompt or num_blocks < MIN_BLOCKS or not tiers or is_longer:
            return None
        hashes = request.hash_blocks(block_size)[:num_blocks]
        lookup = Lookup(self._stores, tiers, hashes, self._host.kv_groups)
        try:
            looking = run_in_thread("kv-lookup", lookup.run)
        except RuntimeError as error:  # the process has as many threads as it may
            logger.warning("stored KV is not looked up: %s", error)
            return None
        try:
            await self._wait(looking, request, num_blocks)
        finally:
            lookup.is_given_up = True
            (lookup.asked or tiers[0]).give_up(looking)
        if looking.done() and (failure := looking.exception()) is not None:
            logger.error("a lookup of stored KV failed", exc_info=failure)
        found = lookup.found
        self.hashes.add(hashes[: found.num_blocks])
        if looking.done() and len(tiers) == len(self._tiers):  # all have been asked
            self.hashes.discard(hashes[found.num_blocks :])
        if found.num_blocks < MIN_BLOCKS:
            return None
        return StoredFetch(self._host, self._stores, request, found, self._fetches, self._slots, self._followers)

    async def _wait(self, looking: "asyncio.Future[None]", request: Request, num_blocks: int) -> None:
        """Wait for the end of a lookup, for as long as what it may save is worth."""
        started_s = time.monotonic()
        await asyncio.wait((looking,), timeout=LOOKUP_S)
        if looking.done():
            return
        pricing = self._host.call(lambda engine: self._patience_s(engine, request, num_blocks))
        left_s = LONGEST_LOOKUP_S - LOOKUP_S  # the engine may hang, too, or wait for ranks
        await asyncio.wait((looking, pricing), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not looking.done() and pricing.done() and pricing.exception() is None:  # an ended engine computes nothing
            left_s = started_s + pricing.result() - time.monotonic()
            await asyncio.wait((looking,), timeout=max(0.0, left_s))

    def _patience_s(self, engine: Engine, request: Request, num_blocks: int) -> float:
        """Return how long a lookup of a request's blocks may take; 0 if the pool has nearly all of them."""
        block_size, rate = self._host.config.block_size, engine.prefill_tokens_per_s
        num_missing = num_blocks - engine.blocks.num_cached_tokens(request) // block_size
        if num_missing < MIN_BLOCKS:
            return 0.0
        return lookup_patience_s(num_missing * block_size / rate if rate else 0.0)

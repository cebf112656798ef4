"""The filling of the stores below a worker's KV pool."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded
from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.used_blocks import UsedBlock, UsedBlocks
from baton.kvtransfer.errors import TransferFailed
from baton.kvtransfer.threads import run_in_thread, settled
from baton.worker.engine_host import EngineHost
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.stored_keys import block_key
from baton.worker.kv.storing_rank import StoringRank
from baton.worker.kv.tier_writer import TierWriters

logger = logging.getLogger(__name__)

POLL_S = 0.05  # between two looks for blocks to save
MANY = 16  # blocks that are saved at once: the next prompt may evict them
PAUSE_S = 0.25  # for fewer, as each batch takes calls between steps
FAILURE_PAUSE_S = 10.0  # after a failure of the worker itself
BATCH_BYTES = 64 << 20  # of blocks that are copied at once: each batch takes calls between steps
FLUSH_S = 5.0  # for blocks that are not saved when the worker ends


class BlockSaver:
    """A task that saves the pool's blocks in every tier, in the order of `UsedBlocks`.

    Blocks are neither held nor waited for: what the pool evicts before its turn, or while it is copied, is not saved.
    A batch stays in memory until all tiers have written it.
    """

    def __init__(
        self,
        host: EngineHost,
        stores: RankStores,
        saved: Callable[[Sequence[BlockHash]], None] = lambda _: None,
        followers: Sequence[StoringRank] = (),
    ) -> None:
        """`saved` is called on the event loop with the hashes of blocks that a tier now has."""
        self._host = host
        self._stores = stores
        self._followers = followers
        self._used = UsedBlocks()
        self._batch = max(1, BATCH_BYTES // stores.block_bytes)
        self._writers = TierWriters(stores.tiers, saved)
        self._task: asyncio.Task[None] | None = None
        self._is_closing = asyncio.Event()

    def start(self) -> None:
        """Start saving, before the engine's first step."""

        def attach(engine: Engine) -> None:
            engine.blocks.used = self._used

        self._host.call(attach)
        self._task = asyncio.create_task(self._run(), name="block saver")

    async def close(self) -> None:
        """Save what is left, for at most FLUSH_S; the engine must still run."""
        self._is_closing.set()
        end_s = time.monotonic() + FLUSH_S
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=FLUSH_S)
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._writers.flush(end_s - time.monotonic())
        await self._writers.close()
        if len(self._used):
            logger.info("%d blocks of KV were not saved", len(self._used))

    async def _run(self) -> None:
        while True:
            await self._wait_for_blocks()
            is_last = self._is_closing.is_set()
            try:
                await self._save_all()
                pause_s = PAUSE_S if len(self._used) else 0.0  # no store takes them now
            except EngineEnded:
                return
            except Exception as error:
                is_known = isinstance(error, TransferFailed)
                logger.error("blocks of KV could not be saved: %s", error, exc_info=None if is_known else error)
                pause_s = FAILURE_PAUSE_S
            if is_last:
                return
            await self._pause(pause_s)

    async def _wait_for_blocks(self) -> None:
        """Wait for many blocks, or for a while."""
        end_s = time.monotonic() + PAUSE_S
        while len(self._used) < MANY and time.monotonic() < end_s and not self._is_closing.is_set():
            await self._pause(POLL_S)

    async def _pause(self, pause_s: float) -> None:
        """Pause, but not once the worker ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_closing.wait()

    async def _save_all(self) -> None:
        while len(self._used) and not self._host.is_short_of_ranks and self._writers.takes:
            taken = await self._host.call(lambda engine: engine.blocks.take_used(self._batch))
            if taken:
                await self._save(taken)

    async def _save(self, taken: Sequence[UsedBlock]) -> None:
        """Copy blocks out of the pools of all ranks, and save those that were not evicted meanwhile."""
        blocks = [each.block for each in taken]
        saves = [each.save_stored(blocks) for each in self._followers]
        copying = run_in_thread("kv-copy", partial(self._stores.copy, blocks))
        await settled(copying)
        copies = copying.result()
        for save in saves:
            await save.copied()
        are_good = await self._host.call(lambda engine: self._used.end_copy(taken, engine.blocks.cache.pool))
        good = [index for index, is_good in enumerate(are_good) if is_good]
        keys = [block_key(taken[index].block_hash, taken[index].number) for index in good]
        for save in saves:
            await save.write(keys, good)
        if good:
            hashes = [taken[index].block_hash for index in good]
            await self._writers.put(self._stores.batch(keys, copies, good, hashes))

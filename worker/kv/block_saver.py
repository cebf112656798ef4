"""The filling of the stores below a worker's KV pool."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded
from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.used_blocks import UsedBlocks
from baton.engine.request import BlockId
from baton.kvtransfer.errors import TransferFailed
from baton.kvtransfer.store.pool_blocks import PoolBlocks, rows_of
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.threads import run_in_thread, settled
from baton.worker.engine_host import EngineHost
from baton.worker.kv.tier import Tier

logger = logging.getLogger(__name__)

POLL_S = 0.05  # between two looks for blocks to save
MANY = 16  # blocks that are saved at once: the next prompt may evict them
PAUSE_S = 0.25  # for fewer, as each batch takes calls between steps
FAILURE_PAUSE_S = 10.0  # after a failure of the worker itself
BATCH_BYTES = 64 << 20  # of blocks that are copied at once
WRITE_S = 20.0  # for a batch; a store that takes longer gets no more until it has ended
FLUSH_S = 5.0  # for blocks that are not saved when the worker ends


class BlockSaver:
    """A task that saves the pool's blocks in every tier, in the order of `UsedBlocks`.

    Blocks are neither held nor waited for: what the pool evicts before its turn, or while it is copied, is not saved.
    A batch stays in memory until all tiers have written it. A late tier keeps its batch, and the others go on.
    """

    def __init__(
        self,
        host: EngineHost,
        pool: PoolBlocks,
        tiers: Sequence[Tier],
        saved: Callable[[Sequence[BlockHash]], None] = lambda _: None,
    ) -> None:
        """`saved` is called on the event loop with blocks that a tier now has."""
        self._host = host
        self._saved = saved
        self._pool = pool
        self._tiers = tiers
        self._used = UsedBlocks()
        self._batch = max(1, BATCH_BYTES // pool.block_bytes)
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
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=FLUSH_S)
            self._task.cancel()
            await asyncio.wait((self._task,))
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
        while len(self._used) and not self._host.is_short_of_ranks:
            tiers = [tier for tier in self._tiers if not tier.late]
            if not tiers:
                return
            batch = await self._copy_out()
            if not batch.hashes:
                continue
            writes = {run_in_thread("kv-save", partial(_write, tier, batch)): tier for tier in tiers}
            try:
                done, _ = await asyncio.wait(writes, timeout=WRITE_S)
                self._saved(batch.hashes[: max((write.result() for write in done), default=0)])
            finally:
                for write, tier in writes.items():
                    tier.give_up(write)

    async def _copy_out(self) -> "Batch":
        """Copy the next blocks out of the pool."""
        taken = await self._host.call(lambda engine: engine.blocks.take_used(self._batch))
        if not taken:
            return Batch([], [])
        copying = run_in_thread("kv-copy", partial(_copy, self._pool, [each.block for each in taken]))
        await settled(copying)
        rows = copying.result()
        are_good = await self._host.call(lambda engine: self._used.end_copy(taken, engine.blocks.cache.pool))
        good = [index for index, is_good in enumerate(are_good) if is_good]
        return Batch([taken[index].block_hash for index in good], [rows[index] for index in good])


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Hashes of blocks, and copies of them, each uint8 [block_bytes]."""

    hashes: list[BlockHash]
    copies: list[NDArray[np.uint8]]


def _copy(pool: PoolBlocks, blocks: Sequence[BlockId]) -> NDArray[np.uint8]:
    """Return copies of blocks, [num_blocks, block_bytes]."""
    buffer = pool.buffer(len(blocks))
    pool.copy_out(blocks, buffer)
    return rows_of(buffer)


def _write(tier: Tier, batch: Batch) -> int:
    """Write a batch to one store, and return how many of its blocks are there; one that fails gets no more of it.

    Never raises.
    """
    num_saved = 0
    try:
        for block_hash, copy in zip(batch.hashes, batch.copies, strict=True):
            num_bytes = tier.store.write(block_hash, copy.data)
            num_saved += 1
            tier.counters.saved_blocks += num_bytes > 0
            tier.counters.saved_bytes += num_bytes
        tier.note_use()
    except Exception as error:
        tier.counters.failures += 1
        is_known = isinstance(error, StoreUnavailable)  # and has been logged by the store's guard
        level, trace = (logging.DEBUG, None) if is_known else (logging.ERROR, error)
        text = "some of %d blocks could not be saved in the %s tier: %s"
        logger.log(level, text, len(batch.hashes), tier.store.name, error, exc_info=trace)
    return num_saved

"""The filling of the stores below a worker's KV pool."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from torch import Tensor

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

PAUSE_S = 0.25  # between two looks for blocks to save
BATCH_BYTES = 16 << 20  # of blocks that are copied at once
NICENESS = 10  # of the thread that copies and writes, so that steps come first
WRITE_S = 20.0  # for a batch; a store that takes longer gets no more until it has ended
FLUSH_S = 5.0  # for blocks that are not saved when the worker ends


class BlockSaver:
    """A task that saves the pool's blocks in every tier, in the order of `UsedBlocks`.

    Blocks are held only while they are copied, and are not waited for: what the pool evicts before its turn is not
    saved. At most one batch is in memory.
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
            is_last = self._is_closing.is_set()
            try:
                await self._save_all()
            except EngineEnded:
                return
            except TransferFailed as error:
                logger.warning("blocks of KV could not be saved: %s", error)
            if is_last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._is_closing.wait()

    async def _save_all(self) -> None:
        while len(self._used) and not self._host.is_short_of_ranks:
            batch = await self._copy_out()
            tiers = [tier for tier in self._tiers if not tier.late]
            if batch.hashes and tiers:
                writes = {run_in_thread("kv-save", partial(_write, tier, batch)): tier for tier in tiers}
                try:
                    done, _ = await asyncio.wait(writes, timeout=WRITE_S)
                    self._saved(batch.hashes[: max((write.result() for write in done), default=0)])
                finally:
                    for write, tier in writes.items():
                        tier.give_up(write)

    async def _copy_out(self) -> "Batch":
        """Copy the next blocks out of the pool."""
        pinning = self._host.call(lambda engine: engine.blocks.pin_used(self._batch))
        await settled(pinning)
        pin, hashes = pinning.result()
        buffer = self._pool.buffer(len(hashes))
        copying = run_in_thread("kv-copy", partial(_copy, self._pool, pin.blocks, buffer))
        try:
            await settled(copying)
        finally:
            self._host.call(lambda engine: engine.blocks.unpin(pin.pin_id))
        copying.result()
        return Batch(hashes, buffer)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Copies of blocks, uint8 [num_blocks, block_bytes], and their hashes."""

    hashes: list[BlockHash]
    buffer: Tensor


def _copy(pool: PoolBlocks, blocks: Sequence[BlockId], buffer: Tensor) -> None:
    _step_aside()
    pool.copy_out(blocks, buffer)


def _write(tier: Tier, batch: Batch) -> int:
    """Write a batch to one store, and return how many of its blocks are there; a store that fails gets no more."""
    _step_aside()
    num_saved = 0
    try:
        for block_hash, row in zip(batch.hashes, rows_of(batch.buffer), strict=True):
            num_bytes = tier.store.write(block_hash, row.data)
            num_saved += 1
            tier.counters.saved_blocks += num_bytes > 0
            tier.counters.saved_bytes += num_bytes
        tier.note_use()
    except StoreUnavailable as error:
        tier.counters.failures += 1
        logger.debug("%d blocks are not saved in the %s tier: %s", len(batch.hashes), tier.store.name, error)
    return num_saved


def _step_aside() -> None:
    """Lower the calling thread's priority, so that steps come first."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

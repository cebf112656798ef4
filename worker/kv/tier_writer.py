"""The writing of blocks to the stores of a rank: each store has its own queue and thread."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from baton.engine.kv.block_hash import BlockHash
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.threads import run_in_thread
from baton.worker.kv.rank_stores import Batch
from baton.worker.kv.tier import Tier

logger = logging.getLogger(__name__)

MAX_WAITING = 2  # batches of a store behind the one that is written
WRITE_S = 20.0  # for a batch; a store that takes longer is asked for nothing until it has ended
PATIENCE_S = 1.0  # for a store without room; then it misses batches until it has written those that it has

Saved = Callable[[Sequence[BlockHash]], None]


class TierWriter:
    """A task that writes batches to one store, in order. It starts with the first batch."""

    def __init__(self, tier: Tier, saved: Saved, changed: asyncio.Event) -> None:
        """`saved` is called on the event loop with the hashes of blocks that the store now has.

        `changed` is set whenever there is more room, or less to write.
        """
        self._tier = tier
        self._changed = changed
        self._saved = saved
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(MAX_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._is_behind = False  # it has missed a batch, and has not written those before that
        self._num_unwritten = 0

    @property
    def is_idle(self) -> bool:
        """Whether all batches are written."""
        return not self._num_unwritten

    @property
    def has_room(self) -> bool:
        """Whether a batch may be put now."""
        return not self._tier.late and not self._is_behind and not self._batches.full()

    @property
    def is_awaited(self) -> bool:
        """Whether it has no room, but may soon have some."""
        return not self._tier.late and not self._is_behind and self._batches.full()

    def put(self, batch: Batch) -> None:
        """Queue a batch; without room, the store misses it."""
        if not self.has_room:
            self._is_behind = not self.is_idle
            logger.debug("the %s tier is behind and misses %d blocks", self._tier.store.name, len(batch.hashes))
            return
        self._batches.put_nowait(batch)
        self._num_unwritten += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"writes to {self._tier.store.name}")

    async def close(self) -> None:
        """End; a write that goes on is late, and the batches behind it are dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            batch = await self._batches.get()
            self._changed.set()
            writing = run_in_thread("kv-save", partial(_write, self._tier, batch))
            try:
                await asyncio.wait((writing,), timeout=WRITE_S)
            finally:
                self._tier.give_up(writing)
                self._changed.set()
            await asyncio.wait((writing,))
            self._saved(batch.hashes[: writing.result()])
            self._num_unwritten -= 1
            self._is_behind = self._is_behind and not self.is_idle
            self._changed.set()


class TierWriters:
    """The writers of all stores of a rank."""

    def __init__(self, tiers: Sequence[Tier], saved: Saved = lambda _: None) -> None:
        """saved: see `TierWriter`."""
        self._tiers = tiers
        self._saved = saved
        self._writers: dict[int, TierWriter] = {}
        self._changed = asyncio.Event()

    @property
    def takes(self) -> bool:
        """Whether some store takes batches now or soon."""
        return any(each.has_room or each.is_awaited for each in self._all())

    async def put(self, batch: Batch) -> None:
        """Queue a batch for all stores that have room, or get some within PATIENCE_S."""
        await self._until(lambda writer: not writer.is_awaited, PATIENCE_S)
        for writer in self._all():
            writer.put(batch)

    async def flush(self, timeout_s: float) -> None:
        """Return when all batches are written, or after a time."""
        await self._until(lambda writer: writer.is_idle, timeout_s)

    async def close(self) -> None:
        """End all writers; see `TierWriter.close`."""
        for writer in self._all():
            await writer.close()

    async def _until(self, condition: Callable[[TierWriter], bool], timeout_s: float) -> None:
        """Wait until all writers meet a condition, or for a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not all(condition(writer) for writer in self._all()):
                    self._changed.clear()
                    await self._changed.wait()

    def _all(self) -> list[TierWriter]:
        for number, tier in enumerate(self._tiers):
            if number not in self._writers:
                self._writers[number] = TierWriter(tier, self._saved, self._changed)
        return list(self._writers.values())


def _write(tier: Tier, batch: Batch) -> int:
    """Write a batch, and return how many of its blocks the store has; one that fails gets no more of it.

    Never raises.
    """
    num_written = 0
    try:
        for key, copy in zip(batch.keys, batch.copies, strict=True):
            num_bytes = tier.store.write(key, copy.data)
            num_written += 1
            tier.counters.saved_blocks += num_bytes > 0 and num_written % batch.num_shards == 0
            tier.counters.saved_bytes += num_bytes
        tier.note_use()
    except Exception as error:
        tier.counters.failures += 1
        is_known = isinstance(error, StoreUnavailable)  # and has been logged by the store's guard
        level, trace = (logging.DEBUG, None) if is_known else (logging.ERROR, error)
        text = "some of %d blocks could not be saved in the %s tier: %s"
        logger.log(level, text, len(batch.keys) // batch.num_shards, tier.store.name, error, exc_info=trace)
    return num_written // batch.num_shards

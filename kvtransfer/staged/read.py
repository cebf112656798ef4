"""A read through host memory, frame by frame."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from baton.kvtransfer.base import KVTransport
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.staged.control import StagingControl
from baton.kvtransfer.staged.copy import StagingCopy
from baton.kvtransfer.staged.window import StagingWindow
from baton.kvtransfer.threads import run_by, settled
from baton.kvtransfer.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Local:
    """The local resources of staged reads."""

    pool: LocalPool
    window: StagingWindow
    copy: StagingCopy
    underneath: KVTransport
    threads: Executor


class StagedRead:
    """A read through frames: while one frame is transferred, the previous one is copied into our pool."""

    def __init__(self, local: Local, units: Units, their_frame_blocks: int, transfer: Transfer) -> None:
        self.transfer = transfer
        self._local = local
        self._units = units
        self._our_frame = local.window.frame_blocks * units.local_per_block  # units per frame
        self._their_frame = their_frame_blocks * units.remote_per_block  # units per frame
        self._filled: asyncio.Future[None] | None = None  # the copy into our pool that is in flight, if any

    async def run(self, control: StagingControl) -> None:
        """Return when all units are in our pool; even after an error no copy into it is in flight any more."""
        step = min(self._our_frame, self._their_frame)
        remote, local = self.transfer.remote, self.transfer.local
        try:
            await control.request(remote[:step])
            for start in range(0, len(remote), step):
                theirs = await control.staged()
                if following := remote[start + step : start + 2 * step]:
                    await control.request(following)
                await self._read_frame(control, theirs, local[start : start + step])
            await self._fill_ended()
        finally:
            if self._filled is not None:
                await settled(self._filled)
                self._filled.exception()  # retrieved, so that asyncio does not log it; the first error is raised
                self._filled = None

    async def _read_frame(self, control: StagingControl, theirs: int, units: Sequence[int]) -> None:
        """Read the peer's frame `theirs` and start to copy it into our units."""
        local = self._local
        frame = await local.window.for_reads.borrow()
        ours, first = frame * self._our_frame, theirs * self._their_frame
        into = range(ours, ours + len(units))
        try:
            remote, deadline_s = range(first, first + len(units)), self.transfer.deadline_s
            await local.underneath.read(self.transfer.peer, remote, into, deadline_s)
            await control.give_back()
            await self._fill_ended()
        except BaseException:
            self._give_back_when_clear(frame)
            raise
        filled = run_by(local.threads.submit, partial(self._fill, units, ours))
        filled.add_done_callback(lambda _: local.window.for_reads.give_back(frame))
        self._filled = filled

    def _fill(self, units: Sequence[int], first: int) -> None:
        """Copy a frame into our pool; runs on a thread."""
        self.transfer.check()
        self._local.copy.copy_in(units, self._units.unit_bytes, first)
        self.transfer.landed(len(units))
        self.transfer.check()

    async def _fill_ended(self) -> None:
        if self._filled is not None:
            await settled(self._filled)
            filled, self._filled = self._filled, None
            try:
                filled.result()
            finally:
                del filled

    def _give_back_when_clear(self, frame: int) -> None:
        """Return our frame once no aborted read of the transport underneath may still write into it."""
        window, quarantine = self._local.window, self._local.underneath.quarantine
        first = frame * window.frame_blocks
        blocks = [block for block in range(first, first + window.frame_blocks) if block in quarantine]
        if not blocks:
            window.for_reads.give_back(frame)
            return
        clearing = asyncio.ensure_future(quarantine.wait_clear(blocks))
        clearing.add_done_callback(lambda _: window.for_reads.give_back(frame))

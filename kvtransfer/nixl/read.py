"""A read over NIXL, split into steps."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.kvtransfer.nixl.gpu_memory import MemoryPlace
from baton.kvtransfer.threads import Failed, end_soon
from baton.kvtransfer.transfers import Transfer

ASK_AFTER_S = 1e-3  # without progress, before polling is requested; RDMA and cross-memory attach never need it
MAX_STEP_BYTES = 4 << 20  # per step; an aborted read ends after its current step
MAX_GPU_STEP_BYTES = 32 << 20  # the same between GPUs, which take about 100 us for it
HOST = MemoryPlace()


@dataclass(frozen=True, slots=True)
class Region:
    """A contiguous region of equal pieces of memory."""

    address: int
    piece_bytes: int
    num_pieces: int
    place: MemoryPlace = HOST

    def rows(self) -> NDArray[np.uint64]:
        """Return NIXL's compressed descriptor, [1, 5]: address, length, device, stride, count."""
        row = [self.address, self.piece_bytes, self.place.device, self.piece_bytes, self.num_pieces]
        return np.array([row], np.uint64)


class Read:
    """A read of pieces of a peer's region into ours; once started, used only in the agent's thread."""

    def __init__(
        self,
        transfer: Transfer,
        region: int,
        piece_bytes: int,
        ended: "asyncio.Future[None]",
        ask: Callable[[], object],
        max_step_bytes: int,
        ask_after_s: float,
    ) -> None:
        """`transfer`: of pieces; `region`: the agent's index of our region.

        `ended` is resolved with the read's outcome. `ask`, which requests polling by the peer, is called in the agent's
        thread if a step makes no progress for `ask_after_s` seconds.
        """
        self.peer = transfer.peer
        self.region = region
        self.handle: Any = None  # NIXL's handle of the step in flight
        self.is_broken = False
        self.finished_immediately = True  # every step was done when NIXL returned from posting it
        self._ask = ask
        self._waits_since_s: float | None = None
        self.has_requested_polling = False
        self._all_ours = np.asarray(transfer.local, np.int32)
        self._all_theirs = np.asarray(transfer.remote, np.int32)
        self._step = max(1, max_step_bytes // piece_bytes)
        self._ask_after_s = ask_after_s
        self._next = 0
        self._transfer = transfer
        self._ended: asyncio.Future[None] | None = ended  # dropped when the read ends, to avoid a reference cycle
        self.ours = self.theirs = self._all_ours[:0]  # pieces of the step in flight

    @property
    def has_ended(self) -> bool:
        """Whether the read has ended, well or not."""
        return self._ended is None

    def next_step(self) -> bool:
        """Advance to the next pieces; return False if there are none. Raises the reason if the read was aborted."""
        self._transfer.check()
        start, self._next = self._next, self._next + self._step
        self.ours = self._all_ours[start : self._next]
        self.theirs = self._all_theirs[start : self._next]
        return len(self.ours) > 0

    def end_step(self) -> None:
        """Handle the success of the step in flight."""
        self.handle.release()
        self.handle = None
        self._waits_since_s = None
        self._transfer.landed(len(self.ours))

    def wait(self) -> None:
        """Handle a poll that found the step still in flight; request polling by the peer if it is late."""
        self.finished_immediately = False
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        elif not self.has_requested_polling and now_s - self._waits_since_s > self._ask_after_s:
            self.has_requested_polling = True
            self._ask()

    def finish(self) -> None:
        """End the read successfully."""
        self._end(None)

    def break_off(self, error: Exception) -> None:
        """End the read with an error that leaves NIXL's connection permanently broken."""
        self.is_broken = True
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the read with an error; once NIXL reports an error, it does not write any more."""
        self.handle = None
        self._end(Failed(error))

    def drop_handle(self, errors: tuple[type[Exception], ...]) -> None:
        """Release the handle of a step in flight, before the agent is destroyed."""
        if self.handle is not None:
            with suppress(*errors):  # NIXL may complain that the step is in flight
                self.handle.release()
            self.handle = None

    def _end(self, outcome: Failed | None) -> None:
        ended, self._ended = self._ended, None  # an error's frames reference the read; see `threads`
        if ended is not None:
            end_soon(ended, outcome)

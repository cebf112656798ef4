"""A read over NIXL, step by step."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.kvtransfer.base import Landed, nobody
from baton.kvtransfer.nixl.gpu_memory import MemoryPlace
from baton.kvtransfer.threads import Failed, end_soon
from baton.kvtransfer.transfers import Transfer

ASK_AFTER_S = 1e-3  # a step by RDMA or cross-memory attach takes less time or gets on by itself
MAX_STEP_BYTES = 4 << 20  # asked for at once; an aborted read ends after as much
MAX_GPU_STEP_BYTES = 32 << 20  # the same between GPUs, which take some 100 us for it
HOST = MemoryPlace()


@dataclass(frozen=True, slots=True)
class Region:
    """Equal pieces of memory, one behind the other."""

    address: int
    piece_bytes: int
    num_pieces: int
    place: MemoryPlace = HOST

    def rows(self) -> NDArray[np.uint64]:
        """NIXL's compressed descriptor: address, length, device, stride, count."""
        row = [self.address, self.piece_bytes, self.place.device, self.piece_bytes, self.num_pieces]
        return np.array([row], np.uint64)


class Read:
    """Pieces of a peer's region on their way into ours; used in the agent's thread alone once it was started."""

    def __init__(
        self,
        peer: str,
        region: int,
        ours: Sequence[int],
        theirs: Sequence[int],
        piece_bytes: int,
        transfer: Transfer,
        ended: "asyncio.Future[None]",
        ask: Callable[[], object],
        landed: Landed = nobody,
        max_step_bytes: int = MAX_STEP_BYTES,
        ask_after_s: float = ASK_AFTER_S,
    ) -> None:
        """`region`: number of our region; `ours` and `theirs`: indices of the pieces, pairwise.

        `ended` ends with the read. `ask` is called, in the agent's thread, if the read has not got on for `ask_after_s`
        without the peer's polling. `landed`: see KVTransport.read.
        """
        self.peer = peer
        self.region = region
        self.handle: Any = None  # of the step in flight
        self.is_broken = False
        self.finished_at_once = True  # NIXL never had a step in flight after it was posted
        self._ask = ask
        self._landed = landed
        self._waits_since_s: float | None = None
        self.has_asked = False
        self._all_ours = np.asarray(ours, np.int32)
        self._all_theirs = np.asarray(theirs, np.int32)
        self._step = max(1, max_step_bytes // piece_bytes)
        self._ask_after_s = ask_after_s
        self._next = 0
        self._transfer = transfer
        self._ended: asyncio.Future[None] | None = ended  # until then
        self.ours = self.theirs = self._all_ours[:0]  # of the step in flight

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended is None

    def next_step(self) -> bool:
        """Turns to the next pieces; False when there are none. Raises the reason if the read was aborted."""
        self._transfer.check()
        start, self._next = self._next, self._next + self._step
        self.ours = self._all_ours[start : self._next]
        self.theirs = self._all_theirs[start : self._next]
        return len(self.ours) > 0

    def end_step(self) -> None:
        """The step in flight has ended well."""
        self.handle.release()
        self.handle = None
        self._waits_since_s = None
        self._landed(len(self.ours))

    def wait(self) -> None:
        """The step in flight goes on."""
        self.finished_at_once = False
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        elif not self.has_asked and now_s - self._waits_since_s > self._ask_after_s:
            self.has_asked = True
            self._ask()

    def finish(self) -> None:
        """All pieces are here."""
        self._end(None)

    def break_off(self, error: Exception) -> None:
        """NIXL's connection is broken, and will not mend."""
        self.is_broken = True
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Nothing more will come; what NIXL says of an error ends its writes too."""
        self.handle = None
        self._end(Failed(error))

    def drop_handle(self, errors: tuple[type[Exception], ...]) -> None:
        """Lets go of a step in flight, before the agent is destroyed."""
        if self.handle is not None:
            with suppress(*errors):  # NIXL may say that it is in flight, which is known
                self.handle.release()
            self.handle = None

    def _end(self, outcome: Failed | None) -> None:
        ended, self._ended = self._ended, None  # an error's frames know the read; see `threads`
        if ended is not None:
            end_soon(ended, outcome)

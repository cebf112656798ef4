"""A collective of a group's ranks that is under way."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Work

from baton.engine.errors import GroupBroken


class EndingThreads:
    """Owns the threads that end what was given up: ending it may wait for a rank that hangs."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, end: Callable[[], None]) -> None:
        """Calls `end` on a thread of its own."""
        thread = threading.Thread(target=end, name="group-end", daemon=True)
        thread.start()
        self.add(thread)

    def add(self, thread: threading.Thread) -> None:
        """One more, which runs."""
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Gives them all together so much time."""
        deadline_s = time.monotonic() + timeout_s
        for each in self._threads:
            each.join(max(deadline_s - time.monotonic(), 0))


POLL_S = 0.2  # how soon a wait notices a newer epoch
LOOK_S = 20e-6  # between two looks at what a GPU does; the system makes some 70 us of it, so
SPIN_S = 1e-3  # for so long, which most collectives do not take, there is no pause between them


class WaitingRank(Protocol):
    """What a wait needs of the rank that waits."""

    is_waiting: bool  # for other ranks
    waited_s: float  # since the start

    def check_epoch(self) -> None:
        """Raises GroupBroken if a newer epoch has begun, or this rank has left."""
        ...

    def give_up(self, work: Work) -> None:
        """Nobody waits for it any more, though it may be under way: its memory must stay until its group has ended."""
        ...


class Exchange:
    """A collective under way."""

    def __init__(self, work: Work | None, rank: WaitingRank, *, is_on_gpu: bool = False) -> None:
        """work: None if there was nobody to exchange with; is_on_gpu: it is NCCL's."""
        self._work = work
        self._rank = rank
        self._is_on_gpu = is_on_gpu

    def wait(self) -> None:
        """Returns when it is done. Raises GroupBroken if a rank is gone or a newer epoch has begun."""
        if self._work is None:
            return
        rank, began_s = self._rank, time.monotonic()
        rank.is_waiting = True
        try:
            if self._is_on_gpu:
                self._look_at(self._work)
            else:
                self._poll(self._work)
        except GroupBroken:
            rank.give_up(self._work)
            raise
        finally:
            rank.is_waiting = False
            rank.waited_s += time.monotonic() - began_s

    def _poll(self, work: Work) -> None:
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=POLL_S))
                return
            except RuntimeError as error:
                if has_ended:
                    raise GroupBroken(f"a collective failed: {error}") from error
                if work.is_completed():
                    continue  # it ended just as the time was over: the next wait says how
                self._rank.check_epoch()  # it timed out, and whom it waits for may be gone for good

    def _look_at(self, work: Work) -> None:
        """NCCL's wait for a certain time ends its communicator when the time is over, and without one it never ends."""
        began_s = looked_s = time.monotonic()
        while not work.is_completed():
            time.sleep(0 if time.monotonic() - began_s < SPIN_S else LOOK_S)  # lets other threads run in any case
            if time.monotonic() - looked_s > POLL_S:
                self._rank.check_epoch()
                looked_s = time.monotonic()
        try:
            work.wait()  # our stream, for the result; raises what the work has failed with
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

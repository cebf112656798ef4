"""A collective in flight between a group's ranks."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Work

from baton.engine.errors import GroupBroken


class TeardownThreads:
    """Threads that tear down abandoned connections, which may block on a rank that hangs."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, end: Callable[[], None]) -> None:
        """Call `end` on a new thread."""
        thread = threading.Thread(target=end, name="group-end", daemon=True)
        thread.start()
        self.add(thread)

    def add(self, thread: threading.Thread) -> None:
        """Add a running thread."""
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds in total for all threads to end."""
        deadline_s = time.monotonic() + timeout_s
        for each in self._threads:
            each.join(max(deadline_s - time.monotonic(), 0))


POLL_S = 0.2  # between checks for a newer epoch
GPU_POLL_S = 20e-6  # between polls of a GPU collective; the system rounds this up to some 70 us
SPIN_S = 1e-3  # initial polling without pauses; most collectives are faster than this


class WaitingRank(Protocol):
    """Rank that waits for a collective."""

    is_waiting: bool  # whether it waits for other ranks now
    waited_s: float  # total since start

    def check_epoch(self) -> None:
        """Raise GroupBroken if a newer epoch has begun, or this rank has left."""
        ...

    def abandon(self, work: Work) -> None:
        """Keep an abandoned collective's memory alive until its group has ended: it may still be running."""
        ...


class Exchange:
    """A collective in flight."""

    def __init__(self, work: Work | None, rank: WaitingRank, *, is_on_gpu: bool = False) -> None:
        """Wrap `work`, None for a group of one rank; `is_on_gpu`: the collective is NCCL's."""
        self._work = work
        self._rank = rank
        self._is_on_gpu = is_on_gpu

    def wait(self, on_delay: Callable[[], None] | None = None) -> None:
        """Wait until the collective is done. Raises GroupBroken if a rank is lost or a newer epoch has begun.

        on_delay: called once if a collective on the CPU takes longer than `POLL_S`.
        """
        if self._work is None:
            return
        rank, began_s = self._rank, time.monotonic()
        rank.is_waiting = True
        try:
            if self._is_on_gpu:
                self._poll_gpu(self._work)
            else:
                self._poll(self._work, on_delay)
        except GroupBroken:
            rank.abandon(self._work)
            raise
        finally:
            rank.is_waiting = False
            rank.waited_s += time.monotonic() - began_s

    def _poll(self, work: Work, on_delay: Callable[[], None] | None) -> None:
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=POLL_S))
                return
            except RuntimeError as error:
                if has_ended:
                    raise GroupBroken(f"a collective failed: {error}") from error
                if work.is_completed():
                    continue  # it ended just as the wait timed out: the next wait returns or raises its result
                self._rank.check_epoch()  # it timed out; the rank it waits for may be lost
                if on_delay is not None:
                    on_delay()
                    on_delay = None

    def _poll_gpu(self, work: Work) -> None:
        """Poll an NCCL collective: its timed wait ends the communicator on timeout, its untimed wait may never end."""
        began_s = checked_s = time.monotonic()
        while not work.is_completed():
            time.sleep(0 if time.monotonic() - began_s < SPIN_S else GPU_POLL_S)  # even 0 lets other threads run
            if time.monotonic() - checked_s > POLL_S:
                self._rank.check_epoch()
                checked_s = time.monotonic()
        try:
            work.wait()  # makes the current stream wait for the result; raises the collective's error
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

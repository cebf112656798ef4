"""A collective of a group's ranks that is under way."""

import time
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Work

from engine.errors import GroupBroken

POLL_S = 0.2  # how soon a wait notices a newer epoch


class WaitingRank(Protocol):
    """What a wait needs of the rank that waits."""

    is_waiting: bool  # for other ranks
    waited_s: float  # since the start

    def check_epoch(self) -> None:
        """Raises GroupBroken if a newer epoch has begun, or this rank has left."""
        ...


class Exchange:
    """A collective under way."""

    def __init__(self, work: Work | None, rank: WaitingRank) -> None:
        """work: None if there was nobody to exchange with."""
        self._work = work
        self._rank = rank

    def wait(self) -> None:
        """Returns when it is done. Raises GroupBroken if a rank is gone or a newer epoch has begun."""
        if self._work is None:
            return
        rank, began_s = self._rank, time.monotonic()
        rank.is_waiting = True
        try:
            self._poll(self._work)
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

"""How many communicators a process has at once."""

import asyncio
from collections.abc import Callable, Hashable

from baton.kvtransfer.errors import TransportUnavailable

# Each has memory on its GPU and a stream of NCCL's own there, of which torch has 32 before it gives one out twice; a
# process that reads and is read has as many again.
MAX_SEATS = 15
IDLE_S = 5.0  # and one may be ended for another


class CommunicatorLimit:
    """Seats for communicators, by whom they are with; used on one event loop."""

    def __init__(self, max_seats: int = MAX_SEATS) -> None:
        self._max_seats = max_seats
        self._ends: dict[Hashable, Callable[[], None]] = {}
        self._idle_since_s: dict[Hashable, float] = {}  # the longest idle first

    def take(self, who: Hashable, end: Callable[[], None]) -> None:
        """Takes a seat; if there is none, by `end` of the one that has been idle for longest.

        Raises TransportUnavailable if all are in use.
        """
        if len(self._ends) >= self._max_seats:
            self._vacate()
        self._ends[who] = end

    def use(self, who: Hashable) -> None:
        """Its communicator has something to do."""
        self._idle_since_s.pop(who, None)

    def rest(self, who: Hashable) -> None:
        """Its communicator has nothing to do."""
        if who in self._ends:
            self._idle_since_s.pop(who, None)
            self._idle_since_s[who] = asyncio.get_running_loop().time()

    def leave(self, who: Hashable) -> None:
        """Its communicator ends; idempotent."""
        self._ends.pop(who, None)
        self._idle_since_s.pop(who, None)

    def _vacate(self) -> None:
        idlest = next(iter(self._idle_since_s), None)
        if idlest is None or asyncio.get_running_loop().time() - self._idle_since_s[idlest] < IDLE_S:
            raise TransportUnavailable(f"all {self._max_seats} communicators are in use")
        end = self._ends[idlest]
        self.leave(idlest)
        end()

"""Attempts to connect to addresses that the router was never connected to.

Any program that can write to the registry can list thousands of addresses at which there is no worker. Attempts to
connect to them are bounded in number and in rate. Workers that were connected once need no slot and are not affected.
Addresses with the fewest failures go first, so a worker that registers among thousands of addresses waits for their
first attempts but not for their repetitions. One slot in four goes to the address that has waited longest: otherwise a
stream of new addresses would keep out a worker whose first attempt failed.
"""

import asyncio
from collections import OrderedDict

from baton.rpc.backoff import Backoff

NUM_SLOTS = 64  # attempts in flight
FIRST_TIMEOUT_S = 1.0  # of an attempt, which keeps its slot for that time even if it fails sooner
LAST_TIMEOUT_S = 5.0  # it doubles with each failure up to this
MAX_FAILURES = 12  # further ones are not counted
FIRST_BACKOFF_S = 0.05
FAIR_EVERY = 4  # freed slots, of which one goes to the address that has waited longest
MIN_BACKOFF_LIMIT_S = 1.0  # longest pause while no address waits for a slot
LAST_BACKOFF_S = 60.0


class AttemptSlots:
    """Slots of the attempts in flight, and the queue for them."""

    def __init__(self) -> None:
        self._num_free = NUM_SLOTS
        # By number of failures; each queue in order of arrival, with the numbers of the arrivals as values.
        self._queues = [OrderedDict[asyncio.Future[None], int]() for _ in range(MAX_FAILURES + 1)]
        self._num_arrivals = self._num_freed = 0

    @property
    def max_pause_s(self) -> float:
        """Longest pause between two attempts at an address: it grows with the number of addresses that wait."""
        num_waiting = sum(map(len, self._queues))
        return min(MIN_BACKOFF_LIMIT_S + num_waiting / NUM_SLOTS, LAST_BACKOFF_S)

    async def take(self, num_failures: int) -> None:
        """Return once there is a slot for an address with so many failures."""
        if self._num_free:
            self._num_free -= 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_arrivals += 1
        self._queues[num_failures][slot] = self._num_arrivals
        try:
            await slot
        except asyncio.CancelledError:
            self._queues[num_failures].pop(slot, None)
            if not slot.cancelled():  # it was granted at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give the slot to the next in the queue."""
        self._num_freed += 1
        queues = [queue for queue in self._queues if queue]
        if self._num_freed % FAIR_EVERY == 0:
            queues.sort(key=lambda queue: next(iter(queue.values())))
        for queue in queues:
            while queue:
                slot, _ = queue.popitem(last=False)
                if not slot.done():
                    slot.set_result(None)
                    return
        self._num_free += 1


class Stranger:
    """An address that the router was never connected to: its failures, and its slot during an attempt."""

    def __init__(self, slots: AttemptSlots) -> None:
        self._slots = slots
        self._num_failures = 0
        self._backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        self._begun_s: float | None = None  # event loop's clock; None: it has no slot

    @property
    def timeout_s(self) -> float:
        """Longest time that the next attempt may take."""
        return min(FIRST_TIMEOUT_S * 2.0**self._num_failures, LAST_TIMEOUT_S)

    async def begin(self) -> None:
        """Wait for a slot."""
        await self._slots.take(self._num_failures)
        self._begun_s = asyncio.get_running_loop().time()

    def answered(self) -> None:
        """Give the slot back: the address belongs to a worker."""
        if self._begun_s is not None:
            self._begun_s = None
            self._slots.give_back()

    def fail(self) -> None:
        """Count a failure, and give the slot back at the attempt's time-out."""
        if self._begun_s is not None:
            asyncio.get_running_loop().call_at(self._begun_s + self.timeout_s, self._slots.give_back)
            self._begun_s = None
        self._num_failures = min(self._num_failures + 1, MAX_FAILURES)

    async def pause(self) -> None:
        """Wait before the next attempt: up to a second, or up to a minute if thousands of addresses wait for slots."""
        await self._backoff.wait(self._slots.max_pause_s)

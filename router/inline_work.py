"""Bound on the work of requests on the event loop, so that it does not delay other tasks."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.005  # of work per turn


class InlineWork:
    """Time budget for work in one turn of the event loop, shared by all requests that arrive at once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent_s = 0.0
        self._ends_with_turn = False

    @property
    def is_used_up(self) -> bool:
        """Whether more work should wait for the next turn."""
        return self._spent_s >= TURN_S

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, and count its time."""
        if not self._ends_with_turn:
            self._ends_with_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        begun_s = self._clock()
        try:
            return work()
        finally:
            self._spent_s += self._clock() - begun_s

    async def run_paced(self, work: Callable[[], T]) -> T:
        """Wait for a turn with time left, then return the result of `work`."""
        while self.is_used_up:  # noqa: ASYNC110  # it waits for the next turn itself
            await asyncio.sleep(0)
        return self.run(work)

    def _end_turn(self) -> None:
        self._spent_s = 0.0
        self._ends_with_turn = False


class Pace:
    """Turns of the event loop that a task gives to other tasks between pieces of its work."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun_s = clock()

    async def give_turn(self) -> None:
        """Wait for the next turn if the work since the last one took a whole turn."""
        if self._clock() - self._begun_s >= TURN_S:
            await asyncio.sleep(0)
            self._begun_s = self._clock()

"""Work of many requests on the event loop, which other tasks must not wait for."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.005


class InlineWork:
    """Owns the time that work may take in one turn of the event loop, however many requests come at once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent_s = 0.0
        self._ends_with_turn = False

    @property
    def is_used_up(self) -> bool:
        """Whether other tasks should have their turn before there is more work."""
        return self._spent_s >= TURN_S

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of work, and count its time."""
        if not self._ends_with_turn:
            self._ends_with_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        begun_s = self._clock()
        try:
            return work()
        finally:
            self._spent_s += self._clock() - begun_s

    async def run_paced(self, work: Callable[[], T]) -> T:
        """Return the result of work, which waits for a turn that has time left."""
        while self.is_used_up:  # noqa: ASYNC110  # it waits for the next turn itself
            await asyncio.sleep(0)
        return self.run(work)

    def _end_turn(self) -> None:
        self._spent_s = 0.0
        self._ends_with_turn = False

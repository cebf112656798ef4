"""Python's garbage collector in a router.

What a request leaves is freed at once, as long as it does not refer to itself. The collector finds the rest. Its
automatic runs would take part of every second request, so here they are rare, and full ones happen by the clock: while
no request is in flight, or after a longer time even so. Objects that are there at the start are never looked at again.
"""

import asyncio
import gc
from collections.abc import Callable

NEW_OBJECTS = 50_000  # between two automatic collections of new objects
INTERVAL_S = 10.0  # between two full collections at least
BUSY_INTERVAL_S = 120.0  # the same while requests are in flight: a collection takes some ms for 1,000 of them


class GarbageCollector:
    """Owns the settings of the process's collector."""

    def __init__(self, interval_s: float = INTERVAL_S, busy_interval_s: float = BUSY_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._busy_interval_s = busy_interval_s
        gc.set_threshold(NEW_OBJECTS, 50, 50)

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Collect garbage from time to time, once all that lives as long as the process is there."""
        gc.collect()
        gc.freeze()
        busy_s = 0.0
        while True:
            await asyncio.sleep(self._interval_s)
            busy_s += self._interval_s
            if is_idle() or busy_s >= self._busy_interval_s:
                gc.collect()
                busy_s = 0.0

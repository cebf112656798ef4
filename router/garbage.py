"""The router's garbage collector."""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

NEW_OBJECTS = 50_000  # allocations between two automatic collections of the youngest generation
INTERVAL_S = 10.0  # minimum time between two full collections
BUSY_INTERVAL_S = 120.0  # the same while requests are in flight: a collection takes some ms for 1,000 of them
LONGEST_S = 0.5  # of a full collection, during which the event loop is blocked
FIRST_S_PER_BLOCK = 1e-7  # time of a full collection by memory blocks, until one was measured
LEAST_BLOCKS = 100_000  # below that a collection's time does not say how long one of more blocks takes
NEVER = 1 << 30


class GarbageCollector:
    """Settings and schedule of the process's garbage collector.

    The duration of a full collection grows with the heap. If one would take too long, only young objects are collected:
    a router that stalls for seconds loses its workers, or its watchdog ends it.
    """

    def __init__(self, interval_s: float = INTERVAL_S, busy_interval_s: float = BUSY_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._busy_interval_s = busy_interval_s
        self._s_per_block = FIRST_S_PER_BLOCK
        self._num_frozen_blocks = 0
        self._is_limited = False  # the last collection was of young objects alone
        gc.set_threshold(NEW_OBJECTS, 50, NEVER)  # full collections are ours alone

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Collect garbage periodically. Freezes all objects that exist now: they live as long as the process."""
        gc.collect()
        gc.freeze()
        self._num_frozen_blocks = sys.getallocatedblocks()
        busy_s = 0.0
        while True:
            await asyncio.sleep(self._interval_s)
            busy_s += self._interval_s
            if is_idle() or busy_s >= self._busy_interval_s:
                self.collect()
                busy_s = 0.0

    def collect(self) -> None:
        """Collect all garbage, or that of young objects alone."""
        gc.collect(1)  # what it frees does not count for the full collection's time
        num_blocks = max(sys.getallocatedblocks() - self._num_frozen_blocks, 1)
        was_limited, self._is_limited = self._is_limited, num_blocks * self._s_per_block > LONGEST_S
        if self._is_limited:
            if not was_limited:
                logger.warning("%d memory blocks are too many for a full garbage collection", num_blocks)
            return
        begun_s = time.thread_time()
        gc.collect()
        self._s_per_block = max((time.thread_time() - begun_s) / max(num_blocks, LEAST_BLOCKS), FIRST_S_PER_BLOCK)

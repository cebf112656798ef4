"""Exponential backoff between retries."""

import asyncio
import math
import random


class Backoff:
    """Exponential backoff in seconds from `first_s` to `last_s`; resets after `last_s` without a wait."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s
        self._ended_s = -math.inf  # end of the last wait

    async def wait(self, max_s: float = math.inf) -> None:
        """Sleep for the next interval but at most `max_s`, with jitter of up to half of it."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._ended_s > self._last_s:
            self._next_s = self._first_s
        await asyncio.sleep(min(self._next_s, max_s) * random.uniform(0.5, 1.0))
        self._next_s = min(2 * self._next_s, self._last_s)
        self._ended_s = loop.time()

"""The pause before something that failed is tried again."""

import asyncio
import math
import random


class Backoff:
    """Owns how long the next pause is: twice the last one, but short again after a time without any."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s
        self._ended_s = -math.inf  # the last pause

    async def wait(self) -> None:
        """Pauses; a random part keeps those apart that failed together."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._ended_s > self._last_s:
            self._next_s = self._first_s
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))
        self._next_s = min(2 * self._next_s, self._last_s)
        self._ended_s = loop.time()

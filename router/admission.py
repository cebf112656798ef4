"""How much the router takes on at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import QueueFull
from router.errors import Draining


class Admission:
    """Owns the count of choices taken on, from before their prompts are tokenised, and whether new ones are."""

    def __init__(self, max_inflight: int) -> None:
        self._max_inflight = max_inflight
        self._idle = asyncio.Event()
        self._idle.set()
        self.num_inflight = 0
        self.draining = False

    @contextmanager
    def admit(self, num_choices: int) -> Iterator[None]:
        """Takes on so many choices for the length of the block. Raises QueueFull or Draining."""
        if self.draining:
            raise Draining("the router is shutting down; another one may serve the request")
        if self.num_inflight + num_choices > self._max_inflight:
            raise QueueFull(
                f"{self.num_inflight} choices are being generated and {num_choices} more asked for, "
                f"but this router takes {self._max_inflight} at once; try again soon"
            )
        self.num_inflight += num_choices
        self._idle.clear()
        try:
            yield
        finally:
            self.num_inflight -= num_choices
            if not self.num_inflight:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Returns once nothing is being generated (True) or the time is over (False)."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

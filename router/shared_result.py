"""A result that concurrent requests share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

INTERVAL_S = 0.1


class SharedResult(Generic[T]):
    """A result that is computed for all waiting requests together, at most once per interval.

    A request gets a result whose computation began after the request arrived. It waits up to an interval for that.
    """

    def __init__(self, compute: Callable[[], Awaitable[T]], interval_s: float | None = None) -> None:
        """`interval_s`: minimum time from the end of a computation to the beginning of the next. Default: 0.1."""
        self._compute = compute
        self._interval_s = INTERVAL_S if interval_s is None else interval_s
        self._running = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None  # scheduled, not begun
        self._earliest_s = 0.0

    async def get(self) -> T:
        """Return the result. Raises what the computation raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._compute_next())
        return await asyncio.shield(self._next)  # a cancelled request does not cancel it for the others

    async def _compute_next(self) -> T:
        loop = asyncio.get_running_loop()
        async with self._running:
            await asyncio.sleep(self._earliest_s - loop.time())
            self._next = None
            try:
                return await self._compute()
            finally:
                self._earliest_s = loop.time() + self._interval_s

"""Signs of life between two processes, for as long as the engine behind them steps."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

T = TypeVar("T")

HEARTBEAT_S = 0.25


async def beats_until(waiting: "asyncio.Future[T]", is_stuck: Callable[[], bool]) -> AsyncIterator[None]:
    """Yields now and then until `waiting` is done, but not while the engine is stuck. Raises nothing of its own."""
    while not waiting.done():
        await asyncio.wait((waiting,), timeout=HEARTBEAT_S)
        if not waiting.done() and not is_stuck():
            yield

"""The clock of simulated engines: an event loop's, real or virtual, or that of a discrete-event simulation."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of time that calls functions at given times."""

    @property
    def now_s(self) -> float:
        """Seconds since an arbitrary moment."""
        ...

    def at(self, time_s: float, call: Callable[..., None], *arguments: object) -> None:
        """Call `call(*arguments)` at `time_s`, or soon if that has passed, but only after this method has returned."""
        ...


class LoopClock:
    """The running event loop's clock."""

    @property
    def now_s(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def at(self, time_s: float, call: Callable[..., None], *arguments: object) -> None:
        """Set a timer of the loop."""
        loop = asyncio.get_running_loop()
        if time_s <= loop.time():
            loop.call_soon(call, *arguments)
        else:
            loop.call_at(time_s, call, *arguments)


async def sleep_until(time_s: float) -> None:
    """Return when the loop's clock shows `time_s`, never earlier: uvloop's timers may fire half a millisecond early."""
    loop = asyncio.get_running_loop()
    while loop.time() < time_s:
        reached = asyncio.Event()
        timer = loop.call_at(time_s, reached.set)
        try:
            await reached.wait()
        finally:
            timer.cancel()

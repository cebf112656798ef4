"""When a worker's next report to one router is due."""

import asyncio
import math


class ReportClock:
    """Lets a report wait for news, but none come sooner than the interval after the last.

    Driven from one event loop; `wait` has one caller.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due = asyncio.Event()
        self._due_at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._reported_at_s = asyncio.get_running_loop().time()

    def note_news(self) -> None:
        """Something changed: a report is due once the interval is over."""
        self._due_by(self._reported_at_s + self._interval_s)

    def note_urgent_news(self) -> None:
        """Something changed that cannot wait."""
        self._due_by(-math.inf)

    async def wait(self, at_most_s: float) -> None:
        """Returns when a report is due: after news, and in so many seconds without any; to be called after each."""
        self._due_by(asyncio.get_running_loop().time() + at_most_s)
        await self._due.wait()
        self._reset()

    def close(self) -> None:
        """Ends the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _due_by(self, time_s: float) -> None:
        if self._due.is_set() or time_s >= self._due_at_s:
            return
        self.close()
        loop = asyncio.get_running_loop()
        self._due_at_s = time_s
        if time_s <= loop.time():
            self._due.set()
        else:
            self._timer = loop.call_at(time_s, self._due.set)

    def _reset(self) -> None:
        """The report that was due goes out now; what comes from here on belongs to the next."""
        self.close()
        self._due.clear()
        self._due_at_s = math.inf
        self._reported_at_s = asyncio.get_running_loop().time()

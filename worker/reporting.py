"""Which of a router's commands a worker has taken, so that the router adds to a report only what is not in it."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_UNTOLD = 1 << 16  # numbers that a watcher may lag behind; with more it is told none, and takes all for told


class TakenCommands:
    """Owns, for each watcher, the numbers that it has not been told of yet."""

    def __init__(self) -> None:
        self._untold: dict[str, list[list[int]]] = {}  # by router; a router may watch twice while it reconnects

    @contextmanager
    def watched(self, router_id: str) -> Iterator[list[int]]:
        """The numbers taken from the router since; the watcher empties the list whenever it has told them."""
        untold: list[int] = []
        watchers = self._untold.setdefault(router_id, [])
        watchers.append(untold)
        try:
            yield untold
        finally:
            watchers[:] = [each for each in watchers if each is not untold]
            if not watchers:
                del self._untold[router_id]

    def note(self, router_id: str, number: int) -> None:
        """The engine has the command, or has refused it."""
        if number:
            for untold in self._untold.get(router_id, ()):
                if len(untold) < MAX_UNTOLD:
                    untold.append(number)


READ_DECAY = 0.9  # of a read's weight with each read after it


@dataclass(slots=True)
class WorkerCounters:
    """What comes to a worker: KV from its peers, commands from its routers; changed on its event loop alone."""

    handovers: int = 0
    handover_bytes: int = 0
    handover_failures: int = 0
    checksum_failures: int = 0
    num_prefills: int = 0  # prompts for others that are not computed yet
    num_remembered: int = 0  # requests that ended and may be recalled
    taken: TakenCommands = field(default_factory=TakenCommands)
    _recent_bytes: float = 0.0
    _recent_s: float = 0.0

    def note_read(self, num_bytes: int, duration_s: float) -> None:
        """So many bytes of KV came from a peer; the time is that of the reads alone."""
        if num_bytes > 0 and duration_s > 0:
            self._recent_bytes = READ_DECAY * self._recent_bytes + num_bytes
            self._recent_s = READ_DECAY * self._recent_s + duration_s

    @property
    def read_bytes_per_s(self) -> float:
        """Bytes a second of recent reads; 0: not known yet."""
        return self._recent_bytes / self._recent_s if self._recent_s else 0.0


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

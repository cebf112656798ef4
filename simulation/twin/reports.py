"""When workers' reports reach the router: with news, and no more often than the interval."""

from collections.abc import Callable
from heapq import heappop, heappush

from baton.simulation.twin.clock import Clock
from baton.simulation.twin.worker import Worker


class Reports:
    """Owns the workers that have news. A report is made when the router looks for it, and so never older than due."""

    def __init__(self, clock: Clock, interval_s: float, take: Callable[[Worker], None]) -> None:
        """`take` reads a worker's report."""
        self._clock = clock
        self._interval_s = interval_s
        self._take = take
        self._due: list[tuple[float, int, Worker]] = []
        self._num_noted = 0

    def note(self, worker: Worker) -> None:
        """Something changed there."""
        if not worker.is_noted:
            worker.is_noted = True
            self._num_noted += 1
            due_s = max(self._clock.now_s, worker.reported_s + self._interval_s)
            heappush(self._due, (due_s, self._num_noted, worker))

    def flush(self) -> None:
        """Takes all reports that are due."""
        while self._due and self._due[0][0] <= self._clock.now_s:
            worker = heappop(self._due)[2]
            worker.is_noted = False
            worker.reported_s = self._clock.now_s
            self._take(worker)

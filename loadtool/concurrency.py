"""Number of in-flight requests over time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.loadtool.record import RequestRecord

Array = NDArray[np.float64]


class Concurrency:
    """Step function of the number of in-flight requests."""

    def __init__(self, begins_s: Sequence[float], ends_s: Sequence[float]) -> None:
        times = np.concatenate((np.asarray(begins_s, float), np.asarray(ends_s, float)))
        steps = np.concatenate((np.ones(len(begins_s)), -np.ones(len(ends_s))))
        order = np.lexsort((steps, times))  # at equal times, ends sort before starts
        self.times_s: Array = times[order]
        self.counts: Array = np.cumsum(steps[order])  # from each time until the next
        lengths = np.diff(self.times_s)
        self._integral: Array = np.concatenate(([0.0], np.cumsum(lengths * self.counts[:-1])))

    @property
    def highest(self) -> int:
        """Return the maximum."""
        return int(self.counts.max(initial=0))

    def mean(self, begin_s: float, end_s: float) -> float:
        """Return the mean between two times; for equal times the value then, including a request sent just then."""
        if not len(self.times_s):
            return 0.0
        if end_s <= begin_s:
            return float(self.counts[max(0, int(np.searchsorted(self.times_s, begin_s, "right")) - 1)])
        return (self._upto(end_s) - self._upto(begin_s)) / (end_s - begin_s)

    def _upto(self, at_s: float) -> float:
        return float(np.interp(at_s, self.times_s, self._integral))


def concurrency_of(records: Sequence[RequestRecord]) -> Concurrency:
    """Return the concurrency of requests, from sending to the end of the response."""
    return Concurrency([record.sent_s for record in records], [record.ended_s for record in records])

"""How soon one worker answered lately, in bins.

The sum over the spans is kept as they grow and are dropped: a report asks for that of every worker once a second.
"""

from collections import Counter, deque

SPANS = 6  # within the window, and the present one; coarse: there are as many windows as workers


class LatencyWindow:
    """Owns the counts by bin."""

    def __init__(self, window_s: float) -> None:
        self._span_s = window_s / SPANS
        self._spans: deque[tuple[int, Counter[int]]] = deque()  # each with its number, in order
        self._sum: dict[int, int] = {}

    def add(self, number: int, now_s: float) -> None:
        """One more time in the bin of this number."""
        span = int(now_s // self._span_s)
        if not self._spans or self._spans[-1][0] != span:
            self._drop_old(now_s)
            self._spans.append((span, Counter()))
        self._spans[-1][1][number] += 1
        self._sum[number] = self._sum.get(number, 0) + 1

    def counts(self, now_s: float) -> dict[int, int]:
        """Those of the window."""
        self._drop_old(now_s)
        return self._sum.copy()

    def _drop_old(self, now_s: float) -> None:
        first = int(now_s // self._span_s) - SPANS
        while self._spans and self._spans[0][0] < first:
            for number, count in self._spans.popleft()[1].items():
                self._sum[number] -= count
                if not self._sum[number]:
                    del self._sum[number]

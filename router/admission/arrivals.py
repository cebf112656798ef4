"""Arrival rate of completions over sliding windows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from baton.membership.registry.router_report import SampleSums


@dataclass(slots=True)
class Samples:
    """Count, sum and sum of squares of the samples so far."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count a sample."""
        self.num += 1
        self.total += value
        self.squares += value * value

    def remove(self, value: float) -> None:
        """Uncount a sample that was added."""
        self.num -= 1
        self.total -= value
        self.squares -= value * value

    def sums(self) -> SampleSums:
        """Return the sums as they are reported."""
        return SampleSums(self.num, self.total, self.squares)


T = TypeVar("T")


class SlidingWindow(Generic[T]):
    """One counter for each of the last spans, the current one included."""

    def __init__(self, make: Callable[[], T], num_spans: int, span_s: float) -> None:
        """`make` returns an empty counter."""
        self._make = make
        self._span_s = span_s
        self._counters = [make() for _ in range(num_spans)]
        self._numbers: list[int | None] = [None] * num_spans  # number of each counter's span; None: unused

    def at(self, now_s: float) -> T:
        """Return the counter of the current span."""
        number = int(now_s // self._span_s)
        place = number % len(self._counters)
        if self._numbers[place] != number:
            self._counters[place] = self._make()
            self._numbers[place] = number
        return self._counters[place]

    def live(self, now_s: float) -> Iterator[T]:
        """Yield the counters of the window that are in use."""
        first = self._first(now_s)
        for counter, number in zip(self._counters, self._numbers, strict=True):
            if number is not None and number >= first:
                yield counter

    def begins_s(self, now_s: float) -> float:
        """Return the time at which the window begins."""
        return self._first(now_s) * self._span_s

    def _first(self, now_s: float) -> int:
        return int(now_s // self._span_s) - len(self._counters) + 1


SPAN_S = 1.0
MIN_WINDOW_S = 1.0  # so that a router that has just started does not report a huge rate


@dataclass(slots=True)
class _SpanCounts:
    """Completions that arrived in one span."""

    num: int = 0
    gaps_s: Samples = field(default_factory=Samples)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """The counts of one request, so that they can be removed."""

    span: _SpanCounts
    num_choices: int
    gap_s: float | None  # time since the previous request; None: not counted
    previous_s: float | None  # time of the previous request


class Arrivals:
    """Arrival counts of completions, taken before requests wait or are refused."""

    def __init__(self, window_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = window_s
        self._clock = clock
        self._began_s = clock()
        self._last_s: float | None = None
        self._last: Arrival | None = None
        self._window = SlidingWindow(_SpanCounts, window_s, SPAN_S)

    def add(self, num_choices: int) -> Arrival:
        """Count a request. Its completions arrive together, without gaps."""
        now_s = self._clock()
        span = self._window.at(now_s)
        span.num += num_choices
        span.gaps_s.num += num_choices - 1
        gap_s = None if self._last_s is None else now_s - self._last_s
        if gap_s is not None and gap_s >= self._longest_s:  # the previous request has left the window
            gap_s = None
        if gap_s is not None:
            span.gaps_s.add(gap_s)
        arrival = self._last = Arrival(span, num_choices, gap_s, self._last_s)
        self._last_s = now_s
        return arrival

    def remove(self, arrival: Arrival) -> None:
        """Uncount a request that turned out to be invalid: it is no load.

        If other requests have arrived since, the gap after it remains too short.
        """
        span = arrival.span
        span.num -= arrival.num_choices
        span.gaps_s.num -= arrival.num_choices - 1
        if arrival.gap_s is not None:
            span.gaps_s.remove(arrival.gap_s)
        if self._last is arrival:
            self._last_s, self._last = arrival.previous_s, None

    @property
    def num_choices(self) -> int:
        """Completions that arrived within the window."""
        return sum(span.num for span in self._window.live(self._clock()))

    @property
    def gaps_s(self) -> SampleSums:
        """Times between the arrivals, in seconds."""
        return sum((span.gaps_s.sums() for span in self._window.live(self._clock())), SampleSums())

    @property
    def window_s(self) -> float:
        """Length of the window; shorter after a start, at least 1 s."""
        now_s = self._clock()
        return max(MIN_WINDOW_S, now_s - max(self._began_s, self._window.begins_s(now_s)))

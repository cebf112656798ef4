"""Arrival rate of completions over sliding windows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from baton.membership.registry.router_report import SampleSums


@dataclass(slots=True)
class Samples:
    """What has been seen so far."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """One more sample."""
        self.num += 1
        self.total += value
        self.squares += value * value

    def remove(self, value: float) -> None:
        """A sample that was added is none."""
        self.num -= 1
        self.total -= value
        self.squares -= value * value

    def sums(self) -> SampleSums:
        """As they are told."""
        return SampleSums(self.num, self.total, self.squares)


T = TypeVar("T")


class SlidingWindow(Generic[T]):
    """Owns one thing to count in for each of the last spans, the present one included."""

    def __init__(self, make: Callable[[], T], num_spans: int, span_s: float) -> None:
        """`make` gives a thing that has counted nothing."""
        self._make = make
        self._span_s = span_s
        self._things = [make() for _ in range(num_spans)]
        self._numbers: list[int | None] = [None] * num_spans  # of the span that each is for; None: of none yet

    def at(self, now_s: float) -> T:
        """The thing of the present span."""
        number = int(now_s // self._span_s)
        place = number % len(self._things)
        if self._numbers[place] != number:
            self._things[place] = self._make()
            self._numbers[place] = number
        return self._things[place]

    def live(self, now_s: float) -> Iterator[T]:
        """The things of the window that have counted anything."""
        first = self._first(now_s)
        for thing, number in zip(self._things, self._numbers, strict=True):
            if number is not None and number >= first:
                yield thing

    def begins_s(self, now_s: float) -> float:
        """Since when all that came is counted."""
        return self._first(now_s) * self._span_s

    def _first(self, now_s: float) -> int:
        return int(now_s // self._span_s) - len(self._things) + 1


SPAN_S = 1.0
LEAST_WINDOW_S = 1.0  # a router that began a moment ago knows no rate


@dataclass(slots=True)
class _Came:
    """The choices that came in one span."""

    num: int = 0
    gaps_s: Samples = field(default_factory=Samples)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """What was counted of a request, so that it can be taken back."""

    span: _Came
    num_choices: int
    gap_s: float | None  # before it; None: none was counted
    previous_s: float | None  # when the one before it came


class Arrivals:
    """Owns when choices came, before anybody waits or is refused."""

    def __init__(self, window_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = window_s
        self._clock = clock
        self._began_s = clock()
        self._last_s: float | None = None
        self._last: Arrival | None = None
        self._window = SlidingWindow(_Came, window_s, SPAN_S)

    def came(self, num_choices: int) -> Arrival:
        """A request came; its choices come at once, without a gap."""
        now_s = self._clock()
        span = self._window.at(now_s)
        span.num += num_choices
        span.gaps_s.num += num_choices - 1
        gap_s = None if self._last_s is None else now_s - self._last_s
        if gap_s is not None and gap_s >= self._longest_s:  # of no window
            gap_s = None
        if gap_s is not None:
            span.gaps_s.add(gap_s)
        arrival = self._last = Arrival(span, num_choices, gap_s, self._last_s)
        self._last_s = now_s
        return arrival

    def was_invalid(self, arrival: Arrival) -> None:
        """A request that came was none, which was found out a moment later: it is no load.

        Unless others came in the meantime all is as if it had never come; the gap after it stays too short if so.
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
        """That came within the window."""
        return sum(span.num for span in self._window.live(self._clock()))

    @property
    def gaps_s(self) -> SampleSums:
        """Times between them."""
        return sum((span.gaps_s.sums() for span in self._window.live(self._clock())), SampleSums())

    @property
    def window_s(self) -> float:
        """The time in which they came."""
        now_s = self._clock()
        return max(LEAST_WINDOW_S, now_s - max(self._began_s, self._window.begins_s(now_s)))

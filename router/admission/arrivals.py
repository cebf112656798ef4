"""How often choices came to the router lately."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.membership.registry.router_report import SampleSums
from baton.router.metrics.samples import Samples
from baton.router.metrics.sliding_window import SlidingWindow

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

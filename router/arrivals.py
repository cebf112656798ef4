"""How often choices came to the router in the last minute."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from router.samples import Samples
from router.sliding_window import SlidingWindow
from rpc.registry.report import SampleSums

SPAN_S, NUM_SPANS = 1.0, 60
LEAST_WINDOW_S = 1.0  # a router that began a moment ago knows no rate


@dataclass(slots=True)
class _Came:
    """The choices that came in one span."""

    num: int = 0
    gaps_s: Samples = field(default_factory=Samples)


class Arrivals:
    """Owns when choices came, before anybody waits or is refused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._last_s: float | None = None
        self._window = SlidingWindow(_Came, NUM_SPANS, SPAN_S)

    def came(self, num_choices: int) -> None:
        """A request came; its choices come at once, without a gap."""
        now_s = self._clock()
        span = self._window.at(now_s)
        span.num += num_choices
        span.gaps_s.num += num_choices - 1
        if self._last_s is not None and now_s - self._last_s < NUM_SPANS * SPAN_S:  # a longer gap is of no window
            span.gaps_s.add(now_s - self._last_s)
        self._last_s = now_s

    def was_invalid(self, num_choices: int) -> None:
        """A request that came was none, which was found out a moment later: it is no load."""
        self._window.at(self._clock()).num -= num_choices

    @property
    def num_choices(self) -> int:
        """That came within the window."""
        return max(0, sum(span.num for span in self._window.live(self._clock())))

    @property
    def gaps_s(self) -> SampleSums:
        """Times between them."""
        return sum((span.gaps_s.sums() for span in self._window.live(self._clock())), SampleSums())

    @property
    def window_s(self) -> float:
        """The time in which they came."""
        now_s = self._clock()
        return max(LEAST_WINDOW_S, now_s - max(self._began_s, self._window.begins_s(now_s)))

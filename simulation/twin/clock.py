"""Virtual time: a queue of events."""

from collections.abc import Callable
from heapq import heappop, heappush

Call = Callable[..., None]


class Clock:
    """Future events in order of time; those of the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0  # run so far
        self._events: list[tuple[float, int, Call, tuple[object, ...]]] = []
        self._num_asked = 0

    def at(self, time_s: float, call: Call, *arguments: object) -> None:
        """Run `call(*arguments)` at `time_s`, or next if that has passed."""
        self._num_asked += 1
        heappush(self._events, (max(time_s, self.now_s), self._num_asked, call, arguments))

    def after(self, seconds: float, call: Call, *arguments: object) -> None:
        """Run `call(*arguments)` in `seconds`."""
        self.at(self.now_s + seconds, call, *arguments)

    def run(self) -> None:
        """Run all events, including those that events add."""
        events = self._events
        while events:
            self.now_s, _, call, arguments = heappop(events)
            self.num_events += 1
            call(*arguments)

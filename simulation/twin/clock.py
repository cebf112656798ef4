"""Virtual time: what is to happen, and when."""

from collections.abc import Callable
from heapq import heappop, heappush

Call = Callable[..., None]


class Clock:
    """Owns the events that are still to come; those of one moment happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0  # that have happened
        self._events: list[tuple[float, int, Call, tuple[object, ...]]] = []
        self._num_asked = 0

    def at(self, time_s: float, call: Call, *arguments: object) -> None:
        """`call` happens at that time, or at once if it is over."""
        self._num_asked += 1
        heappush(self._events, (max(time_s, self.now_s), self._num_asked, call, arguments))

    def after(self, seconds: float, call: Call, *arguments: object) -> None:
        """`call` happens in so many seconds."""
        self.at(self.now_s + seconds, call, *arguments)

    def run(self) -> None:
        """Lets everything happen, until there is nothing left."""
        events = self._events
        while events:
            self.now_s, _, call, arguments = heappop(events)
            self.num_events += 1
            call(*arguments)

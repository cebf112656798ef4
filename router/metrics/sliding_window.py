"""What was counted lately: a ring of equal spans of time, of which the oldest is forgotten as a new one begins."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

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

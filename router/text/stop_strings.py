"""Search for stop strings in an output, in time linear in its length.

Clients control stop strings and outputs, so both may be arbitrarily repetitive. Each stop string has a
Knuth-Morris-Pratt automaton, which reads each character once.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may be sent, and the stop string that ended it."""

    text: str
    stop: str | None = None


class StopString:
    """A stop string and its failure function, shared by all completions of a request."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = [0, 0]  # by length of the prefix; computed as far as outputs have matched

    def border(self, length: int) -> int:
        """Return the length of the longest proper prefix that is also a suffix of the first `length` characters."""
        text, borders = self.text, self._borders
        while len(borders) <= length:
            char, border = text[len(borders) - 1], borders[-1]
            while border and text[border] != char:
                border = borders[border]
            borders.append(border + (text[border] == char))
        return borders[length]


class _Match:
    """Match of the end of an output with the beginning of a stop string."""

    def __init__(self, stop: StopString) -> None:
        self.stop = stop
        self.num_chars = 0  # less than the whole stop string

    def advance(self, text: str) -> int | None:
        """Add new text. Return the index in it at which the stop string first ends; None if it does not."""
        stop, wanted, num_chars = self.stop, self.stop.text, self.num_chars
        end: int | None = None
        place = 0
        while place < len(text):
            if not num_chars:  # the usual case; `find` is faster
                place = text.find(wanted[0], place)
                if place < 0:
                    break
            char = text[place]
            place += 1
            while num_chars and wanted[num_chars] != char:
                num_chars = stop.border(num_chars)
            num_chars += wanted[num_chars] == char
            if num_chars == len(wanted):
                end = place if end is None else end
                num_chars = stop.border(num_chars)
        self.num_chars = num_chars
        return end


class StopMatcher:
    """Text of one completion that is held back because it may begin a stop string.

    The match that ends first counts, and among those the one that begins first, so the result does not depend on how
    the text is split into pieces.
    """

    def __init__(self, stops: Sequence[StopString], include: bool) -> None:
        """`include`: the stop string itself is released, too."""
        self._matches = [_Match(stop) for stop in stops]
        self._include = include
        self._held = ""

    def push(self, text: str, check: bool = True) -> Released:
        """Return the text that can be released; without `check`, no stop string may end within the new text."""
        if not self._matches:
            return Released(text)
        buffer, num_held = self._held + text, len(self._held)
        ends = [(end, match) for match in self._matches if (end := match.advance(text)) is not None]
        if check and ends:
            end, match = min(ends, key=lambda each: (each[0], -len(each[1].stop.text)))
            stop = match.stop.text
            self.flush()
            end += num_held
            return Released(buffer[: end if self._include else end - len(stop)], stop)
        num_released = len(buffer) - max(match.num_chars for match in self._matches)
        self._held = buffer[num_released:]
        return Released(buffer[:num_released])

    def flush(self) -> str:
        """Return the text that was held back, at the end of the output."""
        held, self._held = self._held, ""
        for match in self._matches:
            match.num_chars = 0
        return held

"""Where an output ends because of a stop string, in time that is linear in its text.

Stop strings and outputs are the client's, so every text may repeat itself as much as the stop strings do. Each stop
string is followed by its Knuth-Morris-Pratt automaton, which never reads a character again.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may be shown, and the stop string that ended it."""

    text: str
    stop: str | None = None


class StopString:
    """A stop string and its failure function, which all choices of a request share."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = [0, 0]  # by length of a beginning of the text; computed as far as outputs have matched

    def border(self, length: int) -> int:
        """Return the length of the longest true beginning that is also an end of the first `length` characters."""
        text, borders = self.text, self._borders
        while len(borders) <= length:
            char, border = text[len(borders) - 1], borders[-1]
            while border and text[border] != char:
                border = borders[border]
            borders.append(border + (text[border] == char))
        return borders[length]


class _Match:
    """How much of a stop string the end of an output matches."""

    def __init__(self, stop: StopString) -> None:
        self.stop = stop
        self.num_chars = 0  # less than the whole stop string

    def advance(self, text: str) -> int | None:
        """Take new text. Return where in it the stop string ends for the first time; None: nowhere."""
        stop, wanted, num_chars = self.stop, self.stop.text, self.num_chars
        end: int | None = None
        place = 0
        while place < len(text):
            if not num_chars:  # most often: the library searches faster
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
    """Owns the text of one choice that is held back because it may begin a stop string.

    The match that ends first counts, and among those the one that begins first, so that the result does not depend
    on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[StopString], include: bool) -> None:
        """`include`: the stop string itself is released too."""
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
        """Return what was held back, at the text's end."""
        held, self._held = self._held, ""
        for match in self._matches:
            match.num_chars = 0
        return held

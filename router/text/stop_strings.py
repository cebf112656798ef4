"""Stop strings in a text that comes in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may be shown, and the stop string that ended it."""

    text: str
    stop: str | None = None


class StopStrings:
    """Owns the text that is held back because it may begin a stop string.

    The match that ends first counts, and among those the one that begins first, so that the result does not depend
    on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        """`include`: the stop string itself is released too."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def push(self, text: str, check: bool = True) -> Released:
        """The text that can be released; without `check`, no stop string may end within the new text."""
        if not self._stops:
            return Released(text)
        num_held = len(self._held)
        buffer = self._held + text
        if check and text:
            found = [(start + len(stop), start, stop) for stop, start in self._find(buffer, num_held)]
            if found:
                end, start, stop = min(found)
                self._held = ""
                return Released(buffer[: end if self._include else start], stop)
        keep = max(_overlap(buffer, stop) for stop in self._stops)
        self._held = buffer[len(buffer) - keep :]
        return Released(buffer[: len(buffer) - keep])

    def flush(self) -> str:
        """What was held back, at the text's end."""
        held, self._held = self._held, ""
        return held

    def _find(self, buffer: str, num_old: int) -> list[tuple[str, int]]:
        """Where each stop string first is, of those places that end within the new text."""
        places = [(stop, buffer.find(stop, max(0, num_old - len(stop) + 1))) for stop in self._stops]
        return [(stop, start) for stop, start in places if start >= 0]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a true beginning of `stop`."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0

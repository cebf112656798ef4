"""A bound on the lines of one kind in the log: peers can cause as many errors as they like."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 20  # records of one kind at once
PER_S = 1.0  # and then
MAX_KINDS = 1024  # remembered


@dataclass(slots=True)
class _Kind:
    """Records with one text, whatever their arguments."""

    left: float  # records that may be written
    since_s: float  # when `left` was right
    num_dropped: int = 0


class LogLimit(logging.Filter):
    """Drops warnings and errors of a kind that come too fast; the next one that is written has their number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}  # by logger and text

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        if record.levelno < logging.WARNING:
            return True
        now_s = self._clock()
        kind = self._kind((record.name, str(record.msg)), now_s)
        kind.left = min(BURST, kind.left + (now_s - kind.since_s) * PER_S)
        kind.since_s = now_s
        if kind.left < 1:
            kind.num_dropped += 1
            return False
        kind.left -= 1
        if kind.num_dropped:
            record.msg, record.args = f"{record.getMessage()} (and {kind.num_dropped} more)", None
            kind.num_dropped = 0
        return True

    def _kind(self, key: tuple[str, str], now_s: float) -> _Kind:
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.pop(next(iter(self._kinds)), None)
            kind = self._kinds[key] = _Kind(BURST, now_s)
        return kind

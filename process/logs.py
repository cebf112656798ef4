"""Logging of every Baton process: one line per record, with time, level, process name and the request if any.

`log_records.py` reads them.
"""

import faulthandler
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from baton.process.request_scope import current_request

PUNCTUATION = "()[]:,;'\""  # around the id of a request in a text
BURST = 20  # records of one kind in a burst
PER_S = 1.0  # records of one kind per second after that
MAX_KINDS = 1024  # kinds that are tracked


@dataclass(slots=True)
class _Kind:
    """The rate limit of records with one message template."""

    left: float  # records that may be written, as of `since_s`
    since_s: float
    num_dropped: int = 0


class LogLimit(logging.Filter):
    """The rate limit on warnings and errors of one kind; the next record written has the number of dropped ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}  # by logger and message template

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


LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)

DUMP_SIGNAL = signal.SIGUSR2  # makes a process write all stack traces to standard error
NOISY = ("httpx", "httpcore", "asyncio", "urllib3", "filelock")  # at info, one record per request or poll


def log_level() -> str:
    """Return the lowest level that this process logs, as one of `LOG_LEVELS`."""
    return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()


def dump_stacks_on_signal() -> None:
    """Make DUMP_SIGNAL write all stack traces, even while no Python code can run."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


class _Formatter(logging.Formatter):
    """Format of a line, with the request of the running task unless the text names it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line of a record whose `message` is set."""
        request_id = current_request()
        is_named = not request_id or any(word.strip(PUNCTUATION) == request_id for word in record.message.split())
        record.request = "" if is_named else f"[{request_id}] "
        return super().formatMessage(record)


def set_up_logging(process_name: str, level: str) -> None:
    """Log records from `level` up to standard error, with times in UTC and a rate limit."""
    formatter = _Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {process_name} %(name)s: %(request)s%(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(LogLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))

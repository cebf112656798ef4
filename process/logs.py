"""Logging of every Baton process: one line per record, with time, level, process name and the request if any."""

import faulthandler
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

from baton.process.log_format import JsonLines, LogSource, make_formatter
from baton.process.log_settings import LogSettings

logger = logging.getLogger(__name__)

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
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


DUMP_SIGNAL = signal.SIGUSR2  # makes a process write all stack traces to standard error
NOISY = ("httpx", "httpcore", "asyncio", "urllib3", "filelock")  # at info, one record per request or poll


def log_settings() -> LogSettings:
    """Return the settings with which this process logs."""
    level = logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
    return LogSettings(level=level, format="json" if any(_json_formatters()) else "text")


def change_log_role(role: str) -> None:
    """Log the role that this process's worker has from now on."""
    for formatter in _json_formatters():
        formatter.source = replace(formatter.source, role=role)


def _json_formatters() -> Iterator[JsonLines]:
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return (each for each in formatters if isinstance(each, JsonLines))


def dump_stacks_on_signal() -> None:
    """Make DUMP_SIGNAL write all stack traces, even while no Python code can run."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def log_uncaught_exceptions() -> None:
    """Log exceptions that end the process or one of its threads, instead of Python's own report of them."""
    sys.excepthook = lambda kind, error, traceback: _log_uncaught("the process", (kind, error, traceback))
    threading.excepthook = lambda hook: _log_uncaught(
        "a thread" if hook.thread is None else f"thread {hook.thread.name}",
        (hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback),
    )


def _log_uncaught(place: str, error: ExcInfo) -> None:
    logger.error("uncaught exception in %s", place, exc_info=error)


def set_up_logging(source: LogSource, settings: LogSettings) -> None:
    """Log records from the settings' level up to standard error, with times in UTC and a rate limit."""
    handler = logging.StreamHandler()
    handler.setFormatter(make_formatter(settings.format, source))
    handler.addFilter(LogLimit())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))

"""Logging of every Baton process: one line a record, with time, level and process name."""

import faulthandler
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

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


LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)

DUMP_SIGNAL = signal.SIGUSR2  # has a process write the stack of each thread to standard error
NOISY = ("httpx", "httpcore", "asyncio", "urllib3", "filelock")  # one record a request or a poll at info


def log_level() -> str:
    """The least level that this process logs, as one of `LOG_LEVELS`."""
    return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()


def dump_stacks_on_signal() -> None:
    """Have DUMP_SIGNAL write the stack of each thread, also while no Python code can run."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def set_up_logging(process_name: str, level: str) -> None:
    """Sends the records of this process from `level` on to standard error, times in UTC, with a bound on floods."""
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {process_name} %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(LogLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))

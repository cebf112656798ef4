"""Logging of every Baton process: one line a record, with time, level and process name."""

import faulthandler
import logging
import signal
import time
from typing import Literal, get_args

from baton.process.log_limit import LogLimit

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

"""Logging of every Baton process: one line a record, with time, level and process name."""

import logging
import time
from typing import Literal, get_args

LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)

NOISY = ("httpx", "httpcore", "asyncio", "urllib3", "filelock")  # one record a request or a poll at info


def log_level() -> str:
    """The least level that this process logs, as one of `LOG_LEVELS`."""
    return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()


def set_up_logging(process_name: str, level: str) -> None:
    """Sends the records of this process from `level` on to standard error, times in UTC."""
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {process_name} %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))

"""Formats of log lines, with the request of the running task; `log_record.py` reads them."""

import logging
import os
import socket
import time
from copy import copy
from dataclasses import dataclass
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from baton.process.request_scope import current_request

PUNCTUATION = "()[]:,;'\""  # around the id of a request in a text
TIME = "%Y-%m-%dT%H:%M:%S"
RENAMED = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "exception", "stack_info": "stack"}
FIELDS = (
    *("time", "level", "process", "role", "worker", "host", "pid", "logger", "request_id", "message"),
    *("exception", "stack"),
)  # in the order in which they are written


@dataclass(frozen=True, slots=True)
class LogSource:
    """The process that writes a log."""

    process: str  # name in its lines
    role: str = ""  # the role that a worker has now, `router`, ...
    worker: str = ""  # the worker that the process is, or whose rank it is; metrics have the same label


class TextLines(logging.Formatter):
    """One line per record, with the request in brackets unless the text names it."""

    def __init__(self, process_name: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {process_name} %(name)s: %(request)s%(message)s", datefmt=TIME
        )
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line of a record whose `message` is set."""
        request_id = current_request()
        is_named = not request_id or any(word.strip(PUNCTUATION) == request_id for word in record.message.split())
        record.request = "" if is_named else f"[{request_id}] "
        return super().formatMessage(record)


class JsonLines(JsonFormatter):
    """One JSON object per record, with `FIELDS` that are not empty.

    Attributes that libraries add to records are left out: they may have content of requests. `source` may be replaced
    by one with another role.
    """

    def __init__(self, source: LogSource) -> None:
        self.source = source
        about = {"host": socket.gethostname(), "pid": os.getpid()}
        super().__init__(
            ["asctime", "levelname", "name", "message"],
            rename_fields=RENAMED,
            static_fields=about,
            reserved_attrs=[*RESERVED_ATTRS, *FIELDS],  # a library's `host` or `exception` would replace ours
        )
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, whose message may be any object."""
        if isinstance(record.msg, dict):  # the base class would spread it over the fields
            record = copy(record)
            record.msg = str(record.msg)
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        """Return the time in UTC, with milliseconds."""
        return f"{super().formatTime(record, TIME)}.{int(record.msecs):03d}Z"

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a line."""
        source = self.source
        log_data |= {"process": source.process, "role": source.role, "worker": source.worker}
        log_data["request_id"] = current_request()
        return {name: value for name in FIELDS if (value := log_data.get(name)) not in (None, "")}


def make_formatter(name: str, source: LogSource) -> logging.Formatter:
    """Return the formatter of a name in `LOG_FORMATS`."""
    return JsonLines(source) if name == "json" else TextLines(source.process)

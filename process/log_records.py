"""Records that are read back from log files, in either of the formats in which `log_format.py` writes them."""

import heapq
import json
import os
import re
import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Protocol

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
HEAD = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) +(?P<process>\S+) (?P<logger>\S+): "
    r"(?:\[(?P<request_id>\S+)\] )?(?P<text>.*)",
    re.DOTALL,
)
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
JSON_FIELDS = ("time", "level", "process", "logger", "request_id", "message", "exception", "stack")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_LINE_BYTES = 1 << 20  # a longer line is read in pieces
MAX_RECORD_CHARS = 1 << 20  # lines without a head that follow become a record of their own
READ_BYTES = 1 << 16
PIPE_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a process: a line with a head or of JSON, and the lines without either that follow it."""

    time: str  # UTC, such as 2026-01-01T12:00:00.000Z; empty: the line has no head
    level: str
    process: str
    logger: str
    request_id: str  # empty: of no request
    text: str
    line: str  # the record as text; its lines as written, unless they were JSON


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Conditions on records; each that is empty holds for all."""

    level: str = "DEBUG"
    workers: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()  # beginnings of the names of processes, in front of a dash
    request_id: str = ""  # or a part of it
    since: str = ""  # in the form of `LogRecord.time`

    def accepts(self, record: LogRecord) -> bool:
        """Return whether a record meets all conditions."""
        return (
            LEVELS.get(record.level, LEVELS["INFO"]) >= LEVELS[self.level]
            and (not self.workers or record.process in self.workers)
            and (not self.pools or record.process.partition("-")[0] in self.pools)
            and self.request_id in record.line
            and record.time >= self.since
        )


def read_record(line: str) -> LogRecord | None:
    """Return the record of one line, of text or JSON; None for a line without a head."""
    if line.startswith("{"):
        return _json_record(line)
    match = HEAD.fullmatch(line)
    return (
        None
        if match is None
        else LogRecord(**{key: value or "" for key, value in match.groupdict().items()}, line=line)
    )


def _json_record(line: str) -> LogRecord | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):  # of another program, or cut off
        return None
    if not isinstance(fields.get("time"), str) or not isinstance(fields.get("process"), str):
        return None
    texts = (_printable(str(fields.get(name, ""))) for name in JSON_FIELDS)
    time, level, process, logger, request_id, message, *behind = texts
    text = "\n".join([message, *filter(None, behind)])
    named = f"[{request_id}] " if request_id else ""
    shown = f"{time} {level:<7} {process} {logger}: {named}{text}"
    return LogRecord(time, level, process, logger, request_id, text, shown)


def _printable(text: str) -> str:
    """Return a text with halves of characters, which JSON can escape and UTF-8 cannot encode, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def since_time(text: str, now: datetime) -> str:
    """Return the time of records that a text means: a duration before `now`, or a date with or without a time.

    Raises ValueError for anything else.
    """
    if (match := DURATION.fullmatch(text)) is not None:
        try:
            moment = now - timedelta(seconds=float(match[1]) * UNITS_S[match[2]])
        except OverflowError as error:
            raise ValueError("it is before the year 1") from error
    else:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class LineSource(Protocol):
    """A file, or a pipe."""

    def readline(self, limit: int = -1, /) -> bytes:
        """Return the next line, or `limit` bytes of it; what there is of it at the end; empty: nothing now."""

    def close(self) -> None:
        """Close it."""


class Pipe:
    """Lines of a pipe, whose reader does not wait for the next one for longer than `PIPE_POLL_S`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = b""
        self.is_open = True

    def readline(self, limit: int = MAX_LINE_BYTES, /) -> bytes:
        """Return the next line; empty: none has been written, or the pipe has ended."""
        while (end := self._read.find(b"\n", 0, limit) + 1) == 0 and len(self._read) < limit and self.is_open:
            if not select.select([self._fd], [], [], PIPE_POLL_S)[0]:
                return b""
            piece = os.read(self._fd, READ_BYTES)
            self.is_open = piece != b""
            self._read += piece
        end = end or limit
        line, self._read = self._read[:end], self._read[end:]
        return line

    def close(self) -> None:
        """Leave the descriptor open: it is standard input."""


class LogFile:
    """Records of one growing file or pipe."""

    def __init__(self, name: str, source: LineSource) -> None:
        """`name`: of the process, for lines without a head."""
        self._source = source
        self._last = LogRecord("", "INFO", name, "", "", "", "")
        self._rest = b""  # the beginning of a line whose end has not been written

    def records(self, *, is_last: bool = False) -> Iterator[LogRecord]:
        """Yield the records that were written since the last call. `is_last`: a line without an end is whole."""
        lines: list[str] = []  # of the record in `self._last`, or without a head behind it
        num_chars = 0
        is_headed = False
        for line in self._lines(is_last):
            record = read_record(line)
            if lines and (record is not None or num_chars > MAX_RECORD_CHARS):
                yield self._record(lines, is_headed)
                lines, num_chars, is_headed = [], 0, False
            if record is not None:
                self._last = record
                is_headed = True
            lines.append(line if record is None else record.line)
            num_chars += len(line)
        if lines:
            yield self._record(lines, is_headed)

    def _record(self, lines: list[str], is_headed: bool) -> LogRecord:
        """Return the record of the last head, with these lines."""
        text = [self._last.text, *lines[1:]] if is_headed else lines
        return replace(self._last, text="\n".join(text), line="\n".join(lines))

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _lines(self, is_last: bool) -> Iterator[str]:
        while piece := self._source.readline(MAX_LINE_BYTES):
            self._rest += piece
            if not self._rest.endswith(b"\n") and len(self._rest) < MAX_LINE_BYTES:
                continue
            yield self._take_line()
        if is_last and self._rest:
            yield self._take_line()

    def _take_line(self) -> str:
        line, self._rest = self._rest, b""
        return line.decode("utf-8", "replace").rstrip("\r\n")


class GrowingFile(LogFile):
    """Records of a file that processes write, shorten, or replace by a new one."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self._file = path.open("rb")
        self._inode = os.fstat(self._file.fileno()).st_ino
        super().__init__(path.name.partition(".log")[0], self._file)

    def follows(self, path: Path) -> bool:
        """Return whether the path is still of this file; read it from the beginning if it became shorter.

        Raises OSError, such as FileNotFoundError while there is no file.
        """
        status = path.stat()
        if status.st_ino != self._inode:
            return False
        if status.st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        return True


def in_order(files: Iterable[Iterable[LogRecord]]) -> Iterator[LogRecord]:
    """Yield records of several files by time; those without one stay behind their predecessors.

    Each file is taken to be in order, so that one record of each is in memory.
    """
    merged = heapq.merge(*(_timed(number, records) for number, records in enumerate(files)), key=itemgetter(0, 1))
    return (record for _, _, record in merged)


def _timed(number: int, records: Iterable[LogRecord]) -> Iterator[tuple[str, int, LogRecord]]:
    """Yield records of a file with their time, or their predecessor's, and the file's number."""
    time = ""
    for record in records:
        time = record.time or time
        yield time, number, record

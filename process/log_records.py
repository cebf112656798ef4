"""Records that are read back from log files, in the form in which `logs.py` writes them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
HEAD = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) +(?P<process>\S+) (?P<logger>\S+): "
    r"(?:\[(?P<request_id>[^\]\s]+)\] )?(?P<text>.*)",
    re.DOTALL,
)
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_LINE_BYTES = 1 << 20  # a longer line is read in pieces


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a process: a line with a head, and the lines without one that follow it."""

    time: str  # UTC, such as 2026-01-01T12:00:00.000Z; empty: the line has no head
    level: str
    process: str
    logger: str
    request_id: str  # empty: of no request
    text: str
    line: str  # as written


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


def since_time(text: str, now: datetime) -> str:
    """Return the time of records that a text means: a duration before `now`, or a date with or without a time.

    Raises ValueError for anything else.
    """
    if (match := DURATION.fullmatch(text)) is not None:
        moment = now - timedelta(seconds=float(match[1]) * UNITS_S[match[2]])
    else:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class LogFile:
    """Records of one growing file, or of a stream that is read once."""

    def __init__(self, name: str, source: BinaryIO) -> None:
        """`name`: of the process, for lines without a head."""
        self._source = source
        self._last = LogRecord("", "INFO", name, "", "", "", "")
        self._rest = b""  # the beginning of a line whose end has not been written

    @classmethod
    def open(cls, path: Path) -> "LogFile":
        """Open a file. Raises OSError."""
        return cls(path.stem, path.open("rb"))

    def records(self) -> Iterator[LogRecord]:
        """Yield the records that were written since the last call."""
        pending: LogRecord | None = None
        for line in self._lines():
            match = HEAD.fullmatch(line)
            if match is None:
                if pending is None:
                    pending = replace(self._last, text=line, line=line)
                else:
                    pending = replace(pending, text=f"{pending.text}\n{line}", line=f"{pending.line}\n{line}")
                continue
            if pending is not None:
                yield pending
            fields = {name: value or "" for name, value in match.groupdict().items()}
            pending = self._last = LogRecord(**fields, line=line)
        if pending is not None:
            yield pending

    def restart(self, size: int) -> None:
        """Read from the beginning again if the file has become shorter: it was truncated."""
        if size < self._source.tell():
            self._source.seek(0)
            self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _lines(self) -> Iterator[str]:
        while piece := self._source.readline(MAX_LINE_BYTES):
            self._rest += piece
            if not self._rest.endswith(b"\n") and len(self._rest) < MAX_LINE_BYTES:
                continue
            line, self._rest = self._rest, b""
            yield line.decode("utf-8", "replace").rstrip("\r\n")


def in_order(files: Iterable[Iterable[LogRecord]]) -> list[LogRecord]:
    """Return records of several files by time; those without one stay behind their predecessors."""
    found: list[tuple[str, int, LogRecord]] = []
    for number, records in enumerate(files):
        time = ""
        for record in records:
            time = record.time or time
            found.append((time, number, record))
    return [record for _, _, record in sorted(found, key=lambda each: each[:2])]

"""Records of log files and pipes, in the order of time."""

import heapq
import os
import select
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from baton.process.log_record import LogRecord, read_record

MAX_LINE_BYTES = 1 << 20  # a longer line is read in pieces
MAX_RECORD_CHARS = 1 << 20  # lines without a head that follow become a record of their own
READ_BYTES = 1 << 16
PIPE_POLL_S = 0.25


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

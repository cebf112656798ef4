"""Incremental parser of server-sent events (WHATWG HTML, section 9.2)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

END_OF_LINE = rb"(?:\r\n|\n|\r(?!\n))"
END_OF_EVENT = re.compile(END_OF_LINE + END_OF_LINE)
LINE = re.compile(rb"[^\r\n]*" + END_OF_LINE)
LONGEST_END = len(b"\r\n\r\n")


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    raw: bytes  # the event with its end, without its `id` and comments: what the client reads
    id: str | None
    data: bytes | None  # value of the first `data` line; None: no such line


class EventReader:
    """Buffer of a stream's incomplete event."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._num_searched = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that the chunk completes, except events without a field."""
        self._buffer += chunk
        begin = 0
        # A carriage return at the end may be the first half of \r\n.
        end = len(self._buffer) - self._buffer.endswith(b"\r")
        while found := END_OF_EVENT.search(self._buffer, max(begin, self._num_searched - LONGEST_END), end):
            event = _parse(bytes(self._buffer[begin : found.end()]))
            begin = self._num_searched = found.end()
            if event.raw.strip():
                yield event
        del self._buffer[:begin]
        self._num_searched = len(self._buffer)


def _parse(text: bytes) -> Event:
    kept: list[bytes] = []
    event_id: str | None = None
    data: bytes | None = None
    for line in LINE.findall(text):
        name, _, value = line.partition(b":")
        if name == b"id":
            event_id = value.strip().decode("latin-1")
        elif name or not value:  # a line without a name but with a value is a comment
            kept.append(line)
            if name == b"data" and data is None:
                data = value.strip()
    return Event(b"".join(kept), event_id, data)

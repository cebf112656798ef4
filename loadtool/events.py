"""Server-sent events out of a body's bytes (WHATWG HTML, section 9.2), as far as OpenAI's streams use them."""


class EventSplitter:
    """Holds what came of an event that is not whole."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that end in this piece."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

"""Streaming parser of one response into its record."""

from collections.abc import Mapping

import orjson

from baton.loadtool.record import Failure, RequestRecord, read_path


class EventSplitter:
    """Buffer of a stream's incomplete event."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that end in this piece."""
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


DONE = b"[DONE]"
MAX_KEPT_BYTES = 64 << 10  # of an error's body
MAX_MESSAGE_CHARS = 300
TEXT_KEYS = ("text", "token_ids")  # of a completion's choice
DELTA_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")  # of a chat's


class ResponseReader:
    """Parser of a stream of completion or chat chunks, or of an error response."""

    def __init__(self, record: RequestRecord, started_s: float) -> None:
        """Write into `record`. `started_s` is the run's start on the clock of the timestamps."""
        self._record = record
        self._started_s = started_s
        self._splitter: EventSplitter | None = None  # None: not an event stream
        self._kept = bytearray()
        self._finish_s: float | None = None  # of an event with only a finish reason
        self._is_done = False

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Start the response."""
        self._record.status = status
        self._record.path = read_path(headers)
        if status == 200 and headers.get("content-type", "").startswith("text/event-stream"):
            self._splitter = EventSplitter()

    def body(self, piece: bytes, now_s: float) -> None:
        """Parse a piece of the body."""
        if self._splitter is None:
            self._kept += piece[: MAX_KEPT_BYTES - len(self._kept)]
            return
        for data in self._splitter.feed(piece):
            if data == DONE:
                self._is_done = True
            elif self._record.failure is None:
                self._event(data, now_s - self._started_s)

    def end(self) -> None:
        """Complete the record at the end of the response."""
        record = self._record
        if not record.token_times_s and self._finish_s is not None:
            record.token_times_s.append(self._finish_s)  # all tokens decoded to empty text
        if record.failure is not None:
            return
        if self._splitter is None:
            record.failure = _refusal(record.status, bytes(self._kept))
        elif not self._is_done and self._finish_s is None:
            record.failure = Failure("cut off", "the stream ended before its last event")
        elif not record.token_times_s:
            record.failure = Failure("empty", "the stream had no output")
        elif not record.is_counted:
            record.num_output_tokens = len(record.token_times_s)

    def _event(self, data: bytes, at_s: float) -> None:
        record = self._record
        try:
            chunk = orjson.loads(data)
            if "error" in chunk:
                record.failure = Failure("error in the stream", _message(chunk))
                return
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta")
                if any(map(choice.get, TEXT_KEYS)) or (delta and any(map(delta.get, DELTA_KEYS))):
                    record.token_times_s.append(at_s)
                if choice.get("finish_reason"):
                    self._finish_s = at_s
            if usage := chunk.get("usage"):
                self._usage(usage)
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
            record.failure = Failure("not understood", f"{error}: {data[:MAX_MESSAGE_CHARS].decode(errors='replace')}")

    def _usage(self, usage: Mapping[str, object]) -> None:
        record = self._record
        match usage.get("completion_tokens"):
            case int() as num_tokens:
                record.num_output_tokens, record.is_counted = num_tokens, True
        match usage.get("prompt_tokens"):
            case int() as num_tokens:
                record.num_prompt_tokens = num_tokens
        match usage.get("prompt_tokens_details"):
            case {"cached_tokens": int() as num_tokens}:
                record.num_cached_tokens = num_tokens


def _refusal(status: int | None, body: bytes) -> Failure:
    if status == 200:
        return Failure("no stream", "the server returned 200 without an event stream")
    try:
        message = _message(orjson.loads(body))
    except orjson.JSONDecodeError:
        message = body.decode(errors="replace")
    return Failure(f"status {status}", message[:MAX_MESSAGE_CHARS])


def _message(content: object) -> str:
    match content:
        case {"error": {"message": str() as message}} | {"message": str() as message} | {"detail": str() as message}:
            return message[:MAX_MESSAGE_CHARS]
    return str(content)[:MAX_MESSAGE_CHARS]

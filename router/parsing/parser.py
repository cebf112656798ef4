"""The parser of one output: reasoning, then content and calls.

Text that is no valid call is content, unchanged and with its markers. A call is valid once its name is known: broken
arguments, and functions that were not offered, do not make it content. Calls in the reasoning are reasoning, except
those of formats that end it (`ReasoningFormat.ended_by_calls_of`).
"""

from collections.abc import Callable, Generator, Sequence

from baton.router.parsing.base import OutputPart, Piece, Tool
from baton.router.parsing.lexer import Lexer, NotACall, Reading
from baton.router.parsing.part_writer import PartWriter
from baton.router.parsing.reasoning import ReasoningFormat, begins_reasoning
from baton.router.parsing.tool_format import CallReading, ToolFormat


class StreamParser:
    """Parser of an output in a reasoning format, a tool format, or both."""

    def __init__(
        self,
        tool_format: ToolFormat | None,
        reasoning_format: ReasoningFormat | None,
        tools: Sequence[Tool],
        single_tokens: frozenset[str],
        is_reasoning_open: bool | None,
        has_implicit_end: bool = False,
    ) -> None:
        """has_implicit_end: a call ends the reasoning. The others are as in `formats.make_parser`."""
        self._lexer = Lexer(single_tokens)
        self._writer = PartWriter()
        self._tool_format = tool_format
        self._reasoning_format = reasoning_format
        self._is_reasoning_open = is_reasoning_open
        self._has_implicit_end = has_implicit_end
        by_name = {tool.name: tool for tool in tools}
        self._reader = tool_format.reader(CallReading(self._lexer, self._writer, by_name)) if tool_format else None
        self._steps: Generator[None, None, None] | None = self._read()
        self._advance()

    def push(self, pieces: Sequence[Piece]) -> list[OutputPart]:
        """Return the parts that the pieces add."""
        for piece in pieces:
            self._lexer.feed(piece)
            self._advance()
        return self._writer.take()

    def flush(self) -> list[OutputPart]:
        """Return the parts that were held back, at the end of the output."""
        self._lexer.end()
        self._advance()
        self._writer.flush()
        return self._writer.take()

    def _advance(self) -> None:
        if self._steps is not None and next(self._steps, self) is self:
            self._steps = None

    def _read(self) -> Reading[None]:
        awaited = None
        if self._reasoning_format is not None:
            begins = self._tool_format.begins if self._tool_format else ()
            self._lexer.stops = self._reasoning_format.markers.union(begins)  # an output may begin with a call
            awaited = yield from self._read_reasoning(self._reasoning_format)
        yield from self._read_content(awaited)

    def _read_reasoning(self, form: ReasoningFormat) -> Reading[frozenset[str] | None]:
        """Read the reasoning. If calls have ended it, return the markers that may follow; otherwise None."""
        lexer, writer = self._lexer, self._writer
        if not (yield from begins_reasoning(lexer, writer, form, self._is_reasoning_open)):
            return None
        calls = self._tool_format.begins if self._tool_format and self._has_implicit_end else ()
        markers = lexer.markers(form.end, *calls)
        awaited = None
        while awaited is None:
            marker = yield from lexer.until(markers, writer.reasoning)
            if marker is None:
                return None
            if marker == form.end:
                writer.end_reasoning()
                return None
            awaited = yield from self._read_calls(marker, writer.reasoning)
        return awaited

    def _read_content(self, awaited: frozenset[str] | None) -> Reading[None]:
        """Read content and calls to the end of the output. `awaited`: markers after calls that ended the reasoning."""
        lexer, writer, form = self._lexer, self._writer, self._tool_format
        if form is None:
            yield from lexer.until(lexer.markers(), writer.content)
            return
        markers = lexer.markers(*form.begins, *form.ends)
        if awaited is None and form.at_beginning:
            awaited = yield from self._read_calls("", writer.content)
        while (marker := (yield from lexer.until(markers, writer.content))) is not None:
            if awaited is not None and marker in awaited:
                awaited -= {marker}
                writer.end_marker()
            elif marker in form.begins:
                awaited = (yield from self._read_calls(marker, writer.content)) or awaited
            else:
                writer.content(marker)

    def _read_calls(self, marker: str, write: Callable[[str], None]) -> Reading[frozenset[str] | None]:
        """Read the calls after a marker, and return the markers that may follow.

        If what follows the last call is none: write what was read of it. Return None if there is no call at all.
        """
        assert self._reader is not None
        assert self._tool_format is not None
        num_calls = self._writer.num_calls
        self._lexer.stops = self._tool_format.markers
        self._lexer.record(marker)
        try:
            return (yield from self._reader.read(marker))
        except NotACall:
            write(self._lexer.recorded())
            return frozenset(self._tool_format.ends) if self._writer.num_calls > num_calls else None

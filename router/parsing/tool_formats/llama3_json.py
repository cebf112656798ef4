"""Calls of Llama 3.1 to 3.3: JSON objects at the beginning of the output, or after `<|python_tag|>`.

    {"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}

An object is a call if it has a name and arguments. Several are separated by semicolons, commas, or white space. Llama 4
writes the same with `<|python_start|>` and `<|python_end|>`.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.json_arguments import JsonCallReader
from baton.router.parsing.lexer import Reading
from baton.router.parsing.structural_tag import (
    Format,
    any_of,
    any_text,
    arguments,
    call_list,
    json_name,
    regex,
    sequence,
    tagged,
)
from baton.router.parsing.tool_format import CallReading, ToolFormat

BEGIN = "<|python_tag|>"
LLAMA4_BEGIN, LLAMA4_END = "<|python_start|>", "<|python_end|>"
MARKERS = (BEGIN, LLAMA4_BEGIN, LLAMA4_END)


class Llama3Reader:
    """Reader of the calls in one output."""

    def __init__(self, reading: CallReading) -> None:
        self._lexer = reading.lexer
        self._writer = reading.writer
        self._calls = JsonCallReader(
            reading.lexer, reading.writer, reading.lexer.markers(*MARKERS), needs_arguments=True
        )
        self._separators = reading.lexer.markers(";", ",")

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the calls after a marker, or at the beginning; see `ToolReader`."""
        lexer = self._lexer
        while (yield from self._calls.call()):
            lexer.record("")
            yield from lexer.skip()
            has_separator = yield from lexer.one_of(self._separators)
            yield from lexer.skip()
            if not has_separator and (yield from lexer.peek()) != "{":
                break
        self._writer.content(lexer.recorded())
        return frozenset({LLAMA4_END})


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(f'{{"name": {json_name(each)}, "parameters": ', arguments(each, required, MARKERS), "}")
        for each in tools
    ]
    calls = call_list(tags, "; ", parallel)
    return calls if required else any_of([calls, sequence(regex(r"[^{<\s]"), any_text(MARKERS))])


LLAMA3_JSON = ToolFormat(begins=(BEGIN,), ends=(), at_beginning=True, reader=Llama3Reader, calls=_calls)
LLAMA4_JSON = ToolFormat(
    begins=(LLAMA4_BEGIN,), ends=(LLAMA4_END,), at_beginning=True, reader=Llama3Reader, calls=_calls
)

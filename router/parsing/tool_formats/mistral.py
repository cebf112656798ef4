"""Calls of Mistral's models: with names in front of the arguments (from tokenizer version 11 on), or as a JSON array.

    [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}
    [TOOL_CALLS]f{"x": 1}
    [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]

Text after the arguments is content.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.json_arguments import JsonCallReader, JsonReader, Trimmed
from baton.router.parsing.lexer import NotACall, Reading
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_format import CallReading, ToolFormat

BEGIN = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"


class MistralReader:
    """Reader of the calls in one output."""

    def __init__(self, reading: CallReading) -> None:
        self._lexer = reading.lexer
        self._writer = reading.writer
        self._ends = self._lexer.markers(BEGIN)
        self._calls = JsonCallReader(self._lexer, self._writer, self._ends)
        self._json = JsonReader(self._lexer, self._ends)
        self._name_ends = self._lexer.markers(BEGIN, CALL_ID, ARGUMENTS, "{", "\n")

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the calls after a marker; see `ToolReader`."""
        yield from self._lexer.skip()
        first = yield from self._lexer.peek()
        if first == "{":
            yield from self._calls.call()
        elif first == "[":
            yield from self._array()
        else:
            yield from self._named()
        return frozenset()

    def _array(self) -> Reading[None]:
        lexer = self._lexer
        if not (yield from lexer.literal("[")):
            raise NotACall
        while (yield from self._calls.call()):
            lexer.record("")
            yield from lexer.skip()
            if not (yield from lexer.literal(",")):
                yield from lexer.literal("]")
                return

    def _named(self) -> Reading[None]:
        lexer, writer = self._lexer, self._writer
        name = (yield from lexer.text_before(self._name_ends)).strip()
        call_id = None
        if name and (yield from lexer.literal(CALL_ID)):
            call_id = (yield from lexer.text_before(self._name_ends)).strip()
        has_arguments = yield from lexer.literal(ARGUMENTS)
        if not name or not (has_arguments or (yield from lexer.peek()) == "{"):
            raise NotACall
        lexer.recorded()
        writer.start_call(name, call_id or None)
        yield from lexer.skip()
        if (yield from lexer.peek()) == "{":
            yield from self._json.value(writer.arguments)
        else:
            yield from lexer.before(self._ends, Trimmed(writer.arguments).write)
        writer.end_call()


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(f"{BEGIN}{each.name}{ARGUMENTS}", arguments(each, required, (BEGIN, CALL_ID, ARGUMENTS)), "")
        for each in tools
    ]
    return call_list(tags, "", parallel) if required else text_with_calls(BEGIN, tags, parallel)


MISTRAL = ToolFormat(begins=(BEGIN,), ends=(), inner=(CALL_ID, ARGUMENTS), reader=MistralReader, calls=_calls)

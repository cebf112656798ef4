"""Calls as JSON between two markers: Hermes 2 Pro, Qwen2.5, Qwen3 and models after them.

    <tool_call>
    {"name": "f", "arguments": {"x": 1}}
    </tool_call>

White space around calls and markers is not content, nor are surplus closing braces directly after a call. The closing
marker is optional: other text after a call is content.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.json_arguments import JsonCallReader
from baton.router.parsing.lexer import Reading
from baton.router.parsing.structural_tag import Format, arguments, call_list, json_name, tagged, text_with_calls
from baton.router.parsing.tool_format import CallReading, ToolFormat

BEGIN = "<tool_call>"
END = "</tool_call>"


class HermesReader:
    """Reader of the calls in one output."""

    def __init__(self, reading: CallReading) -> None:
        self._lexer = reading.lexer
        self._calls = JsonCallReader(reading.lexer, reading.writer, reading.lexer.markers(BEGIN, END))

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the call after a marker; see `ToolReader`."""
        yield from self._calls.call()
        yield from self._lexer.skip("}")
        return frozenset({END})


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(
            f'{BEGIN}\n{{"name": {json_name(tool)}, "arguments": ',
            arguments(tool, required, (BEGIN, END)),
            f"}}\n{END}",
        )
        for tool in tools
    ]
    return call_list(tags, "\n", parallel) if required else text_with_calls(BEGIN, tags, parallel)


HERMES = ToolFormat(begins=(BEGIN,), ends=(END,), reader=HermesReader, calls=_calls)

"""Calls of DeepSeek V3 and R1, and those of V3.1, which have no fences around the arguments.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
    ```json
    {"x": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

White space between the markers is not content.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_format import ToolFormat
from baton.router.parsing.tool_formats.marked_calls import CallName, MarkedSyntax

SECTION_BEGIN, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
MARKERS = (SECTION_BEGIN, CALL_BEGIN, SEPARATOR, CALL_END, SECTION_END)

V3 = MarkedSyntax(
    section_begin=SECTION_BEGIN,
    call_begin=CALL_BEGIN,
    prefix=("function", SEPARATOR),
    name_end="\n",
    name_of=CallName,
    fences=("```json", "```"),
    call_end=CALL_END,
    section_end=SECTION_END,
)
V31 = MarkedSyntax(
    section_begin=SECTION_BEGIN,
    call_begin=CALL_BEGIN,
    name_end=SEPARATOR,
    name_of=CallName,
    call_end=CALL_END,
    section_end=SECTION_END,
)


def _section(tags: Sequence[Format], separator: str, required: bool, parallel: bool) -> Format:
    section = tagged(SECTION_BEGIN, call_list(tags, separator, parallel), SECTION_END)
    return section if required else text_with_calls(SECTION_BEGIN, [section], parallel=False)


def _v3_calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    begin, after = f"{CALL_BEGIN}function{SEPARATOR}", "\n```json\n"
    tags = [
        tagged(f"{begin}{each.name}{after}", arguments(each, required, MARKERS), f"\n```{CALL_END}") for each in tools
    ]
    return _section(tags, "\n", required, parallel)


def _v31_calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(f"{CALL_BEGIN}{each.name}{SEPARATOR}", arguments(each, required, MARKERS), CALL_END) for each in tools
    ]
    return _section(tags, "", required, parallel)


DEEPSEEK_V3 = ToolFormat(begins=V3.begins, ends=V3.ends, inner=(SEPARATOR,), reader=V3.reader, calls=_v3_calls)
DEEPSEEK_V31 = ToolFormat(begins=V31.begins, ends=V31.ends, inner=(SEPARATOR,), reader=V31.reader, calls=_v31_calls)

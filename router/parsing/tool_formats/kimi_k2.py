"""Calls of Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>
    <|tool_calls_section_end|>

The model's id, `functions.f:0`, is the id of the call: the model expects it with the call's result. The name is what
stands between `functions.` and the last colon.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import (
    Format,
    arguments,
    call_list,
    const,
    regex,
    sequence,
    tagged,
    text_with_calls,
)
from baton.router.parsing.tool_format import ToolFormat
from baton.router.parsing.tool_formats.marked_calls import CallName, MarkedSyntax

SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS_BEGIN = "<|tool_call_argument_begin|>"
MARKERS = (SECTION_BEGIN, CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END, SECTION_END)


def _name_of(call_id: str) -> CallName:
    head, colon, number = call_id.rpartition(":")
    name = head if colon and number.isdecimal() else call_id
    return CallName(name.removeprefix("functions."), call_id)


SYNTAX = MarkedSyntax(
    section_begin=SECTION_BEGIN,
    call_begin=CALL_BEGIN,
    name_end=ARGUMENTS_BEGIN,
    name_of=_name_of,
    call_end=CALL_END,
    section_end=SECTION_END,
)


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(
            f"{CALL_BEGIN}functions.{each.name}:",
            sequence(regex("[0-9]{1,4}"), const(ARGUMENTS_BEGIN), arguments(each, required, MARKERS)),
            CALL_END,
        )
        for each in tools
    ]
    section = tagged(SECTION_BEGIN, call_list(tags, "", parallel), SECTION_END)
    return section if required else text_with_calls(SECTION_BEGIN, [section], parallel=False)


KIMI_K2 = ToolFormat(
    begins=SYNTAX.begins, ends=SYNTAX.ends, inner=(ARGUMENTS_BEGIN,), reader=SYNTAX.reader, calls=_calls
)

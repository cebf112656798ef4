"""Calls of Qwen3-Coder and Qwen3.5.

    <tool_call>
    <function=f>
    <parameter=x>
    1
    </parameter>
    </function>
    </tool_call>

One line break after `<parameter=x>` and one in front of `</parameter>` do not belong to the value. The outer element
may be missing.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_formats.xml_calls import XmlSyntax

SYNTAX = XmlSyntax(
    section_begin="<tool_call>",
    call_begin="<function=",
    name_end=">",
    key_begin="<parameter=",
    key_ends={">": None},
    value_end="</parameter>",
    call_end="</function>",
    section_end="</tool_call>",
    trims_lines=True,
)


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(
            f"<tool_call>\n<function={each.name}>\n",
            arguments(each, required, style="qwen_xml"),
            "\n</function>\n</tool_call>",
        )
        for each in tools
    ]
    return call_list(tags, "\n", parallel) if required else text_with_calls("<tool_call>", tags, parallel)


QWEN3_CODER = SYNTAX.tool_format(_calls)

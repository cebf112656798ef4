"""Calls of DeepSeek V3.2, and of V4, whose sections are named `tool_calls`.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="f">
    <｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

The attribute `string` says whether a value is a string; the tool's schema does not matter.
"""

from collections.abc import Sequence
from dataclasses import replace

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_format import ToolFormat
from baton.router.parsing.tool_formats.xml_calls import NO_STRING, STRING, XmlSyntax

CALL_BEGIN, CALL_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"

SYNTAX = XmlSyntax(
    section_begin="<｜DSML｜function_calls>",
    call_begin=CALL_BEGIN,
    name_end='">',
    key_begin='<｜DSML｜parameter name="',
    key_ends={'" string="true">': STRING, '" string="false">': NO_STRING},
    value_end="</｜DSML｜parameter>",
    call_end=CALL_END,
    section_end="</｜DSML｜function_calls>",
)


def _format(syntax: XmlSyntax) -> ToolFormat:
    def calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
        tags = [
            tagged(f'{CALL_BEGIN}{each.name}">\n', arguments(each, required, style="deepseek_xml"), f"{CALL_END}\n")
            for each in tools
        ]
        section = tagged(f"{syntax.section_begin}\n", call_list(tags, "", parallel), syntax.section_end)
        return section if required else text_with_calls(syntax.section_begin, [section], parallel=False)

    return syntax.tool_format(calls)


DEEPSEEK_V32 = _format(SYNTAX)
DEEPSEEK_V4 = _format(replace(SYNTAX, section_begin="<｜DSML｜tool_calls>", section_end="</｜DSML｜tool_calls>"))

"""Calls of DeepSeek V3.2.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="f">
    <｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

The attribute `string` says whether a value is a string; the tool's schema does not matter.
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_format import ToolFormat
from baton.router.parsing.tool_formats.xml_calls import NO_STRING, STRING, XmlSyntax

SECTION_BEGIN, SECTION_END = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
CALL_BEGIN, CALL_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"

SYNTAX = XmlSyntax(
    section_begin=SECTION_BEGIN,
    call_begin=CALL_BEGIN,
    name_end='">',
    key_begin='<｜DSML｜parameter name="',
    key_ends={'" string="true">': STRING, '" string="false">': NO_STRING},
    value_end="</｜DSML｜parameter>",
    call_end=CALL_END,
    section_end=SECTION_END,
)


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(f'{CALL_BEGIN}{each.name}">\n', arguments(each, required, style="deepseek_xml"), f"{CALL_END}\n")
        for each in tools
    ]
    section = tagged(f"{SECTION_BEGIN}\n", call_list(tags, "", parallel), SECTION_END)
    return section if required else text_with_calls(SECTION_BEGIN, [section], parallel=False)


DEEPSEEK_V32 = ToolFormat(
    begins=SYNTAX.begins, ends=SYNTAX.ends, inner=SYNTAX.inner, reader=SYNTAX.reader, calls=_calls
)

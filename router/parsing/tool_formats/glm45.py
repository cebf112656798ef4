"""Calls of GLM 4.5 to 4.7, whose newer templates have no line breaks between the markers.

<tool_call>f
<arg_key>x</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_formats.xml_calls import XmlSyntax

SYNTAX = XmlSyntax(
    section_begin="<tool_call>",
    key_begin="<arg_key>",
    key_ends={"</arg_key>": None},
    value_begin="<arg_value>",
    value_end="</arg_value>",
    section_end="</tool_call>",
)


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(f"<tool_call>{each.name}\n", arguments(each, required, style="glm_xml"), "</tool_call>")
        for each in tools
    ]
    return call_list(tags, "\n", parallel) if required else text_with_calls("<tool_call>", tags, parallel)


GLM45 = SYNTAX.tool_format(_calls)

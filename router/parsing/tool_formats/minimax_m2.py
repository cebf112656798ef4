"""Calls of MiniMax M2.

<minimax:tool_call>
<invoke name="f">
<parameter name="x">1</parameter>
</invoke>
</minimax:tool_call>
"""

from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format, arguments, call_list, tagged, text_with_calls
from baton.router.parsing.tool_formats.xml_calls import XmlSyntax

SYNTAX = XmlSyntax(
    section_begin="<minimax:tool_call>",
    call_begin='<invoke name="',
    name_end='">',
    key_begin='<parameter name="',
    key_ends={'">': None},
    value_end="</parameter>",
    call_end="</invoke>",
    section_end="</minimax:tool_call>",
)


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    tags = [
        tagged(f'<invoke name="{each.name}">\n', arguments(each, required, style="minimax_xml"), "</invoke>\n")
        for each in tools
    ]
    section = tagged("<minimax:tool_call>\n", call_list(tags, "", parallel), "</minimax:tool_call>")
    return section if required else text_with_calls("<minimax:tool_call>", [section], parallel=False)


MINIMAX_M2 = SYNTAX.tool_format(_calls)

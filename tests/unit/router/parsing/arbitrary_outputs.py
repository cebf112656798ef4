"""Arbitrary outputs: garbage, splices of markers, and calls that are damaged in some place."""

from hypothesis import strategies as st

from baton.router.parsing.base import Tool
from baton.router.parsing.formats import REASONING_FORMAT_NAMES, TOOL_FORMAT_NAMES, markers

TOOLS = (
    Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}),
    Tool(name="g", parameters={}),
)
WORDS = (
    *(
        '{"name": "f", "arguments": {"a": "x", "b": [1]}}',
        '{"name": "g"}',
        '"arguments": ',
        '"name": "f"',
        "[f(a=1), ",
        "g()]",
    ),
    *(
        "f",
        "functions.f:1",
        " to=functions.f",
        " to=python",
        "assistant",
        "analysis",
        "commentary",
        "final",
        "json",
        "```json",
        "```",
        "function",
        "</",
        "<",
        ">",
        '">',
    ),
    *(
        '"',
        "\\",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ":",
        ",",
        ";",
        "=",
        "a",
        "1",
        "é",
        "😀",
        " ",
        "\n",
        "\n\n",
        "'",
        "｜DSML｜",
    ),
)


@st.composite
def formats(draw: st.DrawFn) -> tuple[str | None, str | None]:
    """Names of a tool format and a reasoning format that fit each other."""
    tool = draw(st.sampled_from([None, *TOOL_FORMAT_NAMES]))
    reasoning = draw(st.sampled_from([None, *REASONING_FORMAT_NAMES]))
    if tool == "openai" or (reasoning == "openai_gptoss" and tool is not None):
        reasoning = None
    return tool, reasoning


@st.composite
def outputs(draw: st.DrawFn, tool_format: str | None, reasoning_format: str | None) -> str:
    """Texts of words, and of the formats' markers."""
    known = sorted(markers(tool_format, reasoning_format))
    word = st.one_of(st.sampled_from([*known, *WORDS]), st.sampled_from(known or WORDS), st.text(max_size=3))
    return "".join(draw(st.lists(word, max_size=24)))

"""The formats by name, and what the router makes of them: parsers, and grammars for outputs."""

from collections.abc import Sequence

from baton.router.parsing.base import OutputParser, Tool
from baton.router.parsing.parser import StreamParser
from baton.router.parsing.reasoning import REASONING_FORMATS, ReasoningFormat
from baton.router.parsing.structural_tag import Format, any_of, any_text, regex, sequence, tagged
from baton.router.parsing.tool_format import ToolFormat
from baton.router.parsing.tool_formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from baton.router.parsing.tool_formats.deepseek_v32 import DEEPSEEK_V4, DEEPSEEK_V32
from baton.router.parsing.tool_formats.glm45 import GLM45
from baton.router.parsing.tool_formats.harmony import OPENAI, harmony_response, is_in_final_message
from baton.router.parsing.tool_formats.hermes import HERMES
from baton.router.parsing.tool_formats.kimi_k2 import KIMI_K2
from baton.router.parsing.tool_formats.llama3_json import LLAMA3_JSON, LLAMA4_JSON
from baton.router.parsing.tool_formats.minimax_m2 import MINIMAX_M2
from baton.router.parsing.tool_formats.mistral import MISTRAL
from baton.router.parsing.tool_formats.pythonic import PYTHONIC
from baton.router.parsing.tool_formats.qwen3_coder import QWEN3_CODER

# By the names of vLLM's `--tool-call-parser`.
TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": HERMES,
    "llama3_json": LLAMA3_JSON,
    "llama4_json": LLAMA4_JSON,
    "pythonic": PYTHONIC,
    "llama4_pythonic": PYTHONIC,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_V32,
    "deepseek_v4": DEEPSEEK_V4,
    "qwen3_coder": QWEN3_CODER,
    "qwen3_xml": QWEN3_CODER,
    "glm45": GLM45,
    "glm47": GLM45,
    "minimax_m2": MINIMAX_M2,
    "openai": OPENAI,
    "kimi_k2": KIMI_K2,
}
TOOL_FORMAT_NAMES = tuple(TOOL_FORMATS)
HARMONY_REASONING = "openai_gptoss"  # reasoning and calls are one format: this name and `openai` imply each other
REASONING_FORMAT_NAMES = (*REASONING_FORMATS, HARMONY_REASONING)


def markers(tool_format: str | None, reasoning_format: str | None) -> frozenset[str]:
    """Return the markers of the formats. Those that are one token of the vocabulary are the parser's `single_tokens`.

    Raises ValueError for an unknown name.
    """
    tool, reasoning = _formats(tool_format, reasoning_format)
    return frozenset().union(*(form.markers for form in (tool, reasoning) if form is not None))


def text_markers(tool_format: str) -> frozenset[str]:
    """Return the markers of a format that a grammar can only write as text. Raises ValueError for an unknown name."""
    tool, _ = _formats(tool_format, None)
    assert tool is not None
    return frozenset(tool.values)


def make_parser(
    tool_format: str | None,
    reasoning_format: str | None,
    tools: Sequence[Tool] = (),
    single_tokens: frozenset[str] = frozenset(),
    is_reasoning_open: bool | None = None,
) -> OutputParser:
    """Return a parser for one output.

    tool_format, reasoning_format: names; None: calls, or the reasoning, are not parsed, and stay content. tools: the
    functions that the request offers; their schemas convert the values of XML-like formats. single_tokens: the markers
    that are one added token of the vocabulary; each must be a separate piece. is_reasoning_open: what the end of the
    prompt says about the reasoning (`is_reasoning_open`). Raises ValueError for an unknown name.
    """
    tool, reasoning = _formats(tool_format, reasoning_format)
    has_implicit_end = reasoning is not None and tool_format in reasoning.ended_by_calls_of
    return StreamParser(tool, reasoning, tools, single_tokens, is_reasoning_open, has_implicit_end)


def is_reasoning_open(reasoning_format: str | None, prompt: str) -> bool | None:
    """Return whether the end of a rendered prompt leaves the reasoning open (True) or closed; None: it does not say.

    Raises ValueError for an unknown name.
    """
    if reasoning_format == HARMONY_REASONING:
        return False if is_in_final_message(prompt) else None
    _, reasoning = _formats(None, reasoning_format)
    return reasoning.is_open(prompt) if reasoning is not None else None


def output_tag(
    tool_format: str,
    reasoning_format: str | None,
    tools: Sequence[Tool],
    *,
    required: bool,
    parallel: bool,
    is_reasoning_open: bool | None = None,
) -> Format:
    """Return the structural tag of outputs with calls of the tools, in xgrammar's JSON.

    tools: one or more. required: after the reasoning, the output is one or more calls whose arguments match their
    schemas. Otherwise it is text with any number of calls, and only the schemas of strict functions count. parallel:
    more than one call may follow. Raises ValueError for an unknown name, or without tools.
    """
    tool, reasoning = _formats(tool_format, reasoning_format)
    assert tool is not None
    if not tools:
        raise ValueError("a structural tag for calls needs one or more tools")
    excludes = tool.begins if reasoning is not None and tool_format in reasoning.ended_by_calls_of else ()
    return _tag(_after_reasoning(reasoning, is_reasoning_open, tool.calls(tools, required, parallel), excludes))


def response_tag(reasoning_format: str, response: Format, is_reasoning_open: bool | None = None) -> Format:
    """Return the structural tag of outputs that, after the reasoning, match a format of xgrammar's.

    Raises ValueError for an unknown name.
    """
    if reasoning_format == HARMONY_REASONING:
        return _tag(harmony_response(response))
    _, reasoning = _formats(None, reasoning_format)
    return _tag(_after_reasoning(reasoning, is_reasoning_open, response))


def _after_reasoning(
    reasoning: ReasoningFormat | None, is_open: bool | None, response: Format, excludes: Sequence[str] = ()
) -> Format:
    """Return the format of the reasoning, if there may be one, and then the response.

    excludes: markers of calls, which the reasoning must not contain because they would end it.
    """
    if reasoning is None or is_open is False:
        return response
    begin = "" if is_open or reasoning.is_default else reasoning.begin
    line_breaks = regex(r"\n{0,2}")
    thinking = sequence(tagged(begin, any_text(excludes), reasoning.end), line_breaks, response)
    return thinking if not begin else any_of([thinking, response])


def _tag(form: Format) -> Format:
    return {"type": "structural_tag", "format": form}


def _formats(tool: str | None, reasoning: str | None) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    if tool is not None and tool not in TOOL_FORMATS:
        raise ValueError(f"unknown tool call parser {tool!r}; choose one of {', '.join(TOOL_FORMATS)}")
    if reasoning is not None and reasoning not in REASONING_FORMAT_NAMES:
        raise ValueError(f"unknown reasoning parser {reasoning!r}; choose one of {', '.join(REASONING_FORMAT_NAMES)}")
    tool_format = TOOL_FORMATS[tool] if tool is not None else None
    if reasoning == HARMONY_REASONING:
        if tool_format not in (None, OPENAI):
            raise ValueError(f"the reasoning parser {reasoning} needs the tool call parser openai, or none")
        return OPENAI, None
    if tool_format is OPENAI and reasoning is not None:
        raise ValueError(f"the tool call parser openai needs the reasoning parser {HARMONY_REASONING}, or none")
    return tool_format, REASONING_FORMATS[reasoning] if reasoning is not None else None

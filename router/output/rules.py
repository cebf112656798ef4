"""How the output of a request is divided into reasoning, content and tool calls, and the grammar that enforces it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from baton.engine.grammar.grammar import Grammar
from baton.router.errors import FieldError
from baton.router.output.format import OutputFormat
from baton.router.output.grammar import check_parameters, format_of, tag_grammar
from baton.router.output.parts import PartsReader
from baton.router.parsing.base import Tool
from baton.router.parsing.structural_tag import Format

MAX_PROPERTIES = 256  # of a function whose calls are enforced: some formats repeat its definitions for each


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that a request offers to the model, and what it may do with them."""

    offered: tuple[Tool, ...] = ()  # those that the model may call; empty: the output has no calls
    fields: tuple[str, ...] = ()  # names of the fields with their parameters, for errors
    shown: Sequence[Mapping[str, object]] = ()  # all tools, for the chat template
    is_required: bool = False  # the output is one or more calls
    is_limited: bool = False  # the model sees further tools, which it must not call
    is_parallel: bool = True  # there may be several calls


NO_TOOLS = ToolUse()
TOOL_CHARS = 256  # of a schema that takes as long as the rest of a tool


@dataclass(frozen=True, slots=True)
class OutputRules:
    """The format of one request's output, and the tools that it may call."""

    format: OutputFormat
    tools: ToolUse

    @property
    def has_reasoning(self) -> bool:
        """Whether the model writes reasoning."""
        return self.format.reasoning is not None

    @property
    def need_grammar(self) -> bool:
        """Whether the calls need a grammar, which then ensures that there are any, and only of offered tools."""
        tools = self.tools
        return tools.is_required or tools.is_limited or any(tool.strict for tool in tools.offered)

    @property
    def num_schema_chars(self) -> int:
        """Number of characters of the tools' schemas that a grammar would have, and the equal of each tool in work."""
        return sum(TOOL_CHARS + len(orjson.dumps(tool.parameters)) for tool in self.tools.offered)

    def reader(self, is_reasoning_open: bool | None, has_grammar: bool, request_id: str) -> PartsReader:
        """Return a reader for the parts of one completion.

        `is_reasoning_open`: at the end of its prompt. `has_grammar`: a grammar applies to the output.
        `request_id`: for the log.
        """
        max_calls = None if self.tools.is_parallel else 1
        parser = self.format.parser(self.tools.offered, is_reasoning_open, has_grammar)
        with_calls = bool(self.tools.offered)
        markers = self.format.markers if with_calls else self.format.reasoning_markers
        return PartsReader(parser, markers, is_reasoning_open is True, with_calls, max_calls, request_id)

    def grammar(self, given: Grammar | None, is_reasoning_open: bool | None) -> Grammar | None:
        """Return the valid grammar of the whole output; `given`: that of its content. Raises InvalidRequest.

        A grammar of the content allows calls instead of it. vLLM applies it to the whole output, so that the model
        cannot call any tool, and drops it if a call is required; here both together are refused.
        """
        tools = self.tools
        if given is not None:
            given.validate()
            if tools.is_required:
                text = f"{given.field} must not be given if tool_choice requires a call, which is all of the output"
                raise FieldError(given.field, text)
        for tool, field in zip(tools.offered, tools.fields, strict=True):
            if tool.strict or tools.is_required:
                check_parameters(tool.parameters, field)
                properties = tool.parameters.get("properties")
                if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
                    text = f"it has {len(properties)} properties, over the limit of {MAX_PROPERTIES} of enforced calls"
                    raise FieldError(field, f"{field}: {text}")
        form = self._form(given, is_reasoning_open)
        if form is None:
            return given
        if tools.offered and (markers := self.format.unenforceable):
            text = f"this model's {min(markers)} is a special token, which the grammar of its calls cannot contain"
            raise FieldError(self._field(given), f"{self._field(given)}: {text}")
        grammar = tag_grammar(form, self._field(given))
        grammar.validate()
        return grammar

    def _form(self, given: Grammar | None, is_open: bool | None) -> Format | None:
        """Return the format of the whole output; None: it is that of its content."""
        tools = self.tools
        if tools.offered:
            content = None if given is None else format_of(given)
            return self.format.calls_format(tools.offered, tools.is_required, tools.is_parallel, is_open, content)
        if given is None or not self.has_reasoning or is_open is False:
            return None
        return self.format.content_format(format_of(given), is_open)

    def _field(self, given: Grammar | None) -> str:
        """Return the field that errors about the whole grammar name."""
        if given is not None:
            return given.field
        return self.tools.fields[0] if len(self.tools.fields) == 1 else "tools"


def output_rules(form: OutputFormat, tools: ToolUse) -> OutputRules | None:
    """Return the rules of a request's output; None if it is text. Raises FieldError if tools are not supported."""
    if tools.offered and form.calls is None:
        text = "tools are not supported: the router has no parser for the model's calls (--tool-call-parser)"
        raise FieldError("tools", f'{text}; leave tools out, or set tool_choice to "none"')
    return OutputRules(form, tools) if tools.offered or form.reasoning is not None else None

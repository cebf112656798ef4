"""How the output of a request is divided into reasoning, content and tool calls, and the grammar that enforces it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import orjson

from baton.engine.grammar.grammar import Grammar
from baton.router.errors import FieldError
from baton.router.output_parts import PartsReader
from baton.router.parsing.base import OutputParser, Tool


class PromptEnd(Enum):
    """Whether the end of a prompt is part of the model's reasoning."""

    NO_REASONING = "none"  # the output may begin with reasoning
    IN_REASONING = "begun"  # the output continues it
    AFTER_REASONING = "ended"  # the output has none


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


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The formats in which the served model writes its reasoning and its calls of tools."""

    calls: str | None  # name of the format; None: calls are not parsed
    reasoning: str | None
    markers: Mapping[int, str]  # by token id

    def rules(self, tools: ToolUse) -> "OutputRules | None":
        """Return the rules of a request's output; None if it is text. Raises FieldError if tools are not supported."""
        if tools.offered and self.calls is None:
            text = "tools are not supported: the router has no parser for the model's calls (--tool-call-parser)"
            raise FieldError("tools", f'{text}; leave tools out, or set tool_choice to "none"')
        if not tools.offered and self.reasoning is None:
            return None
        return OutputRules(self, tools)

    def prompt_end(self, prompt: str) -> PromptEnd:
        """Return where the model is in its reasoning at the end of a prompt."""
        raise NotImplementedError

    def parser(self, tools: Sequence[Tool], prompt_end: PromptEnd) -> OutputParser:
        """Return a parser of one completion."""
        raise NotImplementedError


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
        """Number of characters of the tools' schemas that a grammar would have."""
        return sum(len(orjson.dumps(tool.parameters)) for tool in self.tools.offered) if self.need_grammar else 0

    def prompt_end(self, prompt: str) -> PromptEnd:
        """Return where the model is in its reasoning at the end of a prompt."""
        return self.format.prompt_end(prompt)

    def reader(self, prompt_end: PromptEnd) -> PartsReader:
        """Return a reader for the parts of one completion."""
        max_calls = None if self.tools.is_parallel else 1
        parser = self.format.parser(self.tools.offered, prompt_end)
        return PartsReader(parser, self.format.markers, prompt_end is PromptEnd.IN_REASONING, max_calls)

    def grammar(self, given: Grammar | None, prompt_end: PromptEnd) -> Grammar | None:
        """Return the valid grammar of the whole output; `given`: that of its content. Raises InvalidRequest."""
        raise NotImplementedError

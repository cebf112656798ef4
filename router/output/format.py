"""The formats in which the served model writes reasoning and calls of tools."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from baton.router.model_options import ModelOptions
from baton.router.parsing.base import OutputParser, Tool
from baton.router.parsing.detect import detect
from baton.router.parsing.formats import (
    HARMONY_REASONING,
    REASONING_FORMAT_NAMES,
    TOOL_FORMAT_NAMES,
    is_reasoning_open,
    make_parser,
    markers,
    output_tag,
    response_tag,
    text_markers,
)
from baton.router.parsing.special_markers import with_tokens
from baton.router.parsing.structural_tag import Format, any_of
from baton.router.text.tokenizer import Tokenizer
from baton.settings.values import OptionError

HARMONY_CALLS = "openai"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The formats of one model by their names, and the markers that are tokens of its vocabulary."""

    calls: str | None  # None: calls are not parsed
    reasoning: str | None  # None: reasoning is not parsed
    markers: Mapping[int, str]  # by token id
    special: frozenset[str] = frozenset()  # those of the markers that are special tokens
    single_tokens: frozenset[str] = field(init=False)  # the same markers

    def __post_init__(self) -> None:
        object.__setattr__(self, "single_tokens", frozenset(self.markers.values()))

    @property
    def reasoning_markers(self) -> Mapping[int, str]:
        """The markers of outputs without calls: the other special tokens are not shown, as in outputs that are text."""
        known = markers(None, self.reasoning)
        return {token_id: text for token_id, text in self.markers.items() if text in known}

    @property
    def unenforceable(self) -> frozenset[str]:
        """The special tokens that a grammar of calls would have to write as text, which they are not."""
        return self.special & text_markers(self.calls) if self.calls is not None else frozenset()

    def is_reasoning_open(self, prompt: str) -> bool | None:
        """Return whether the end of a prompt leaves the reasoning open (True) or closed; None: it does not say."""
        return is_reasoning_open(self.reasoning, prompt[-MAX_END_CHARS:])

    def parser(self, tools: Sequence[Tool], is_open: bool | None, has_grammar: bool = False) -> OutputParser:
        """Return a parser of one completion; without tools, calls are content. `is_open`: see `is_reasoning_open`.

        A grammar asks for the text of a marker that is no special token, so that the model may also spell it.
        """
        single_tokens = self.special if has_grammar else self.single_tokens
        return make_parser(self.calls if tools else None, self.reasoning, tools, single_tokens, is_open)

    def calls_format(
        self, tools: Sequence[Tool], required: bool, parallel: bool, is_open: bool | None, content: Format | None
    ) -> Format:
        """Return the format that outputs with calls of one or more tools match; `content`: that of other outputs."""
        assert self.calls is not None
        if content is None:
            tag = output_tag(
                self.calls, self.reasoning, tools, required=required, parallel=parallel, is_reasoning_open=is_open
            )
            return with_tokens(_format(tag), self.special)
        calls = _format(output_tag(self.calls, None, tools, required=True, parallel=parallel))
        if self.calls == HARMONY_CALLS:  # both are whole outputs: content and calls have channels of their own
            either = any_of([_format(response_tag(HARMONY_REASONING, content)), calls])
            return with_tokens(either, self.special, content)
        return self._after_reasoning(any_of([content, calls]), is_open, content)

    def content_format(self, content: Format, is_open: bool | None) -> Format:
        """Return the format of the whole output, reasoning included, given that of its content."""
        return self._after_reasoning(content, is_open, content)

    def _after_reasoning(self, response: Format, is_open: bool | None, content: Format) -> Format:
        if self.reasoning is not None:
            response = _format(response_tag(self.reasoning, response, is_open))
        return with_tokens(response, self.special, content)


MAX_END_CHARS = 256  # of a prompt: the longest marker of reasoning, and white space behind it


def find_output_format(options: ModelOptions, tokenizer: Tokenizer) -> OutputFormat:
    """Return the formats that the options name, otherwise those of the model's chat template. Logs them.

    Raises OptionError for formats that exclude each other.
    """
    found = detect(tokenizer.chat_template.source)
    model = options.name
    calls = _name(f"tool calls of {model}", options.tool_call_parser, found.tool_format, TOOL_FORMAT_NAMES)
    reasoning = _name(f"reasoning of {model}", options.reasoning_parser, found.reasoning_format, REASONING_FORMAT_NAMES)
    try:
        texts = markers(calls, reasoning)
    except ValueError as error:
        raise OptionError(f"reasoning_parser: {error}") from None
    tokens = tokenizer.single_tokens(texts)
    special = frozenset(text for token_id, text in tokens.items() if tokenizer.is_special(token_id))
    return OutputFormat(calls, reasoning, tokens, special)


def _name(kind: str, option: str | None, found: str | None, known: Collection[str]) -> str | None:
    """Return the name of a format; None: there is none, or none with a parser."""
    name = option or found
    how = "found in the chat template" if option is None else "set by an option"
    if name is None or name not in known:
        logger.info("format of %s: %s, not parsed", kind, name or "not found in the chat template")
        return None
    logger.info("format of %s: %s, %s", kind, name, how)
    return name


def _format(tag: Format) -> Format:
    form = tag["format"]
    assert isinstance(form, dict)
    return form

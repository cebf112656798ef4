"""Harmony, the format of GPT-OSS, in which an output is a series of messages.

    <|channel|>analysis<|message|>I call it.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>Done.<|return|>

Messages of the channel `analysis` are reasoning. A message with a recipient is a call, in any channel, and with the
recipient in any place of its header; to a tool of the model that the client does not offer, it is reasoning. All others
are content. A header without a message, where an output was cut off, is dropped. The prompt ends with
`<|start|>assistant`, and `<|call|>` and `<|return|>` usually end the generation. The library `openai-harmony` is not
used: it downloads its vocabulary when it is loaded, reads token ids alone, and raises at headers that the model writes
with mistakes.
"""

import re
from collections.abc import Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.json_arguments import read_delimited
from baton.router.parsing.lexer import Reading
from baton.router.parsing.structural_tag import Format, any_of, any_text, arguments, const, sequence, star, tagged
from baton.router.parsing.tool_format import CallReading, ToolFormat

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
MARKER = re.compile("|".join(map(re.escape, MARKERS)))
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code", "to=")
NO_CALLS = frozenset({"assistant", "user", "all"})  # recipients
BUILT_IN = frozenset({"python", "browser", "container"})  # tools of the model, which run in its reasoning


class HarmonyReader:
    """Reader of all messages of one output."""

    def __init__(self, reading: CallReading) -> None:
        self._lexer = lexer = reading.lexer
        self._writer = reading.writer
        self._tools = reading.tools
        self._header_begins = lexer.markers(CHANNEL, MESSAGE, CONSTRAIN, "to=")
        self._body_begin = lexer.markers(MESSAGE, START, *ENDS)
        self._body_ends = lexer.markers(*MARKERS)
        self._has_reasoning = self._has_content = False  # messages of a kind are separated by a line break

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the output to its end; see `ToolReader`."""
        lexer, writer = self._lexer, self._writer
        yield from lexer.skip()
        if (yield from lexer.next_marker(self._header_begins)) is None:  # it begins with text, against the format
            writer.content(lexer.recorded())
            yield from lexer.before(self._body_ends, writer.content)
        lexer.recorded()
        last_header = ""
        while not lexer.is_at_end:
            has_begun = yield from lexer.literal(START)
            parts: list[str] = []
            end = yield from lexer.before(self._body_begin, parts.append)
            header = "".join(parts)
            yield from lexer.one_of(self._body_begin)
            if end == MESSAGE:
                last_header = header if header or has_begun else last_header  # a second marker ends no message
                yield from self._body(last_header)
                yield from lexer.one_of(lexer.markers(*ENDS))
            elif not (has_begun or CHANNEL in header) or not _is_header(header):  # otherwise it was cut off
                writer.content(MARKER.sub("", header))
        return frozenset()

    def _body(self, header: str) -> Reading[None]:
        """Read the text of a message."""
        lexer, writer = self._lexer, self._writer
        channel, recipient = CHANNEL_NAME.search(header), RECIPIENT.search(header)
        name = recipient[1].removeprefix("functions.") if recipient is not None else ""
        is_built_in = recipient is not None and recipient[1].partition(".")[0] in BUILT_IN and name not in self._tools
        if name and name not in NO_CALLS and not is_built_in:
            writer.start_call(name)
            yield from read_delimited(lexer, writer.arguments, self._body_ends)
            writer.end_call()
        elif is_built_in or (channel is not None and channel[1] == "analysis"):
            writer.reasoning("\n" if self._has_reasoning else "")
            self._has_reasoning = True
            yield from lexer.before(self._body_ends, writer.reasoning)
        else:
            writer.content("\n" if self._has_content else "")
            self._has_content = True
            yield from lexer.before(self._body_ends, writer.content)


def _is_header(text: str) -> bool:
    """Return whether a text without a message is the beginning of a header, or all of it."""
    words = MARKER.sub(" ", text).split()
    return all(word.startswith("to=") or any(known.startswith(word) for known in HEADER_WORDS) for word in words)


def is_in_final_message(prompt: str) -> bool:
    """Return whether a rendered prompt ends in the answer, which the model then continues without a header.

    `prompt`: text that ends as the prompt ends; the message may have begun earlier.
    """
    before, _, text = prompt.rpartition(MESSAGE)
    header = f"{CHANNEL}final"
    return MARKER.search(text) is None and (before.endswith(header) or header.endswith(before))


def harmony_response(response: Format) -> Format:
    """Return the format of outputs whose only message apart from reasoning matches a format."""
    return sequence(_messages("analysis"), const(f"{CHANNEL}final{MESSAGE}"), response)


def _messages(*channels: str) -> Format:
    """Return the format of any number of messages in the channels, in front of the last message."""
    between = f"{ENDS[0]}{START}assistant"
    messages = [tagged(f"{CHANNEL}{channel}{MESSAGE}", any_text(MARKERS), between) for channel in channels]
    return star(any_of(messages))


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    """Return the format of whole outputs. They end after the first call, since `<|call|>` ends the generation."""
    calls = [
        sequence(
            const(f"{CHANNEL}commentary to=functions.{each.name} {CONSTRAIN}json{MESSAGE}"),
            arguments(each, required, MARKERS),
        )
        for each in tools
    ]
    if required:
        return sequence(_messages("analysis"), any_of(calls))
    final = sequence(const(f"{CHANNEL}final{MESSAGE}"), any_text(MARKERS))
    return sequence(_messages("analysis", "commentary"), any_of([*calls, final]))


OPENAI = ToolFormat(begins=(), ends=MARKERS, at_beginning=True, reader=HarmonyReader, calls=_calls)

"""The parts of one output as a format finds them, without the white space around markers.

Chat templates write white space around markers, and models repeat it, so it is no part of the texts:
- empty lines at the beginning of the reasoning, and those at the beginning of the content after reasoning or calls
- white space in front of the marker that ends the reasoning, and in front of a call
- white space between calls, and after the last one
Everything else is kept: indentation, white space between two texts of the content, and all white space of an output
without markers.
"""

from enum import Enum

import orjson

from baton.router.parsing.base import CallArguments, CallEnd, CallStart, Content, OutputPart, Reasoning
from baton.router.parsing.lexer import WHITESPACE


class Kind(Enum):
    """The kinds of parts that are texts."""

    REASONING = "reasoning"
    CONTENT = "content"
    ARGUMENTS = "arguments"


class _Prose:
    """Text whose white space next to markers is held back, since it may belong to the template."""

    def __init__(self, is_after_marker: bool) -> None:
        self.is_after_marker = is_after_marker  # of the held white space, and of the text that follows
        self._is_begun = False
        self._held: list[str] = []  # white space

    def add(self, text: str) -> str:
        """Return the text that can be released. Lines that are empty at the beginning, after a marker, are dropped."""
        end = len(text.rstrip(WHITESPACE))
        if not end:
            self._held.append(text)
            return ""
        released = "".join((*self._held, text[:end]))
        if self.is_after_marker and not self._is_begun:
            num_white = len(released) - len(released.lstrip(WHITESPACE))
            released = released[released.rfind("\n", 0, num_white) + 1 :]
        self._held = [text[end:]] if end < len(text) else []
        self.is_after_marker, self._is_begun = False, True
        return released

    def drop(self) -> None:
        """Drop the white space in front of a marker."""
        self._held = []
        self.is_after_marker = True

    def flush(self) -> str:
        """Return the white space at the end of the output; after a marker, it is dropped."""
        held = "" if self.is_after_marker else "".join(self._held)
        self._held = []
        return held


class PartWriter:
    """Parts of one output that have not been returned yet, and the number of its calls."""

    def __init__(self) -> None:
        self._parts: list[OutputPart] = []
        self._kind: Kind | None = None  # of the last part, if that is not in `_parts` yet
        self._texts: list[str] = []  # of the part of `_kind`
        self._reasoning = _Prose(is_after_marker=True)
        self._content = _Prose(is_after_marker=False)
        self.num_calls = 0
        self._arguments: list[str] | None = None  # of the call that has begun

    def take(self) -> list[OutputPart]:
        """Return the parts since the last time."""
        self._close_part()
        parts, self._parts = self._parts, []
        return parts

    def reasoning(self, text: str) -> None:
        """Add text of the reasoning."""
        self._add(Kind.REASONING, self._reasoning.add(text))

    def end_reasoning(self) -> None:
        """Note the marker after the reasoning."""
        self._reasoning.drop()
        self._content.drop()

    def content(self, text: str) -> None:
        """Add text of the answer."""
        self._add(Kind.CONTENT, self._content.add(text))

    def start_call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call; the one before has ended."""
        assert self._arguments is None
        self._reasoning.drop()
        self._content.drop()
        self._close_part()
        self._parts.append(CallStart(self.num_calls, name, call_id))
        self._arguments = []

    def arguments(self, text: str) -> None:
        """Add text of the call's arguments."""
        assert self._arguments is not None
        self._arguments.append(text)
        self._add(Kind.ARGUMENTS, text)

    def end_call(self) -> None:
        """End the call."""
        assert self._arguments is not None
        self._close_part()
        self._parts.append(CallEnd(self.num_calls, _is_object("".join(self._arguments))))
        self._arguments = None
        self.num_calls += 1
        self._content.drop()

    def end_marker(self) -> None:
        """Note a marker after calls, which is dropped as the white space around it is."""
        self._content.drop()

    def flush(self) -> None:
        """Add what was held back, at the end of the output."""
        self._add(Kind.REASONING, self._reasoning.flush())
        self._add(Kind.CONTENT, self._content.flush())

    def _add(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._close_part()
            self._kind = kind
        self._texts.append(text)

    def _close_part(self) -> None:
        text, kind = "".join(self._texts), self._kind
        self._texts, self._kind = [], None
        if kind is Kind.REASONING:
            self._parts.append(Reasoning(text))
        elif kind is Kind.CONTENT:
            self._parts.append(Content(text))
        elif kind is Kind.ARGUMENTS:
            self._parts.append(CallArguments(self.num_calls, text))


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False

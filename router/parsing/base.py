"""The parts of an output, and the interface of the parsers that find them.

A model writes its reasoning, its answer and its tool calls as one text, in which markers such as `<think>` and
`<tool_call>` separate them. A parser reads each token once. The parts that it has returned after the last token do not
depend on how the tokens were divided among calls of `push`, apart from where the texts of parts are divided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of an output. A marker that is one token of the vocabulary is a separate piece."""

    text: str
    marker: str | None = None  # the marker, which is then also the text; None: no token that is a marker


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Beginning of a tool call. Calls are numbered from 0."""

    index: int
    name: str
    call_id: str | None = None  # the id that the model wrote; None: it wrote none


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Further text of the JSON with a call's arguments, which is invalid JSON if the model wrote it so."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """End of a tool call: no further arguments follow."""

    index: int
    is_valid_json: bool  # the arguments are a JSON object; False: they are passed on as the model wrote them


OutputPart = Reasoning | Content | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, object]  # JSON Schema of an object; empty: any
    strict: bool = False


class OutputParser(Protocol):
    """Parser of one completion."""

    def push(self, pieces: Sequence[Piece]) -> list[OutputPart]:
        """Return the parts that the pieces add; text that may belong to a marker or to a call's name is held back."""
        ...

    def flush(self) -> list[OutputPart]:
        """Return the parts that were held back, at the end of the output."""
        ...

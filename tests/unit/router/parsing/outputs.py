"""Outputs cut into pieces, and their parts in a short form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.router.parsing.base import CallArguments, CallEnd, CallStart, Content, OutputPart, Piece, Reasoning, Tool
from baton.router.parsing.formats import make_parser


@dataclass
class Call:
    """A call of an output; its fields are in the order of tests' tables."""

    name: str
    arguments: str
    is_valid: bool = True
    call_id: str | None = None


@dataclass
class Parsed:
    """The parts of an output, joined by kind."""

    content: str = ""
    calls: list[Call] = field(default_factory=list)
    reasoning: str = ""


def pieces_of(text: str, single_tokens: frozenset[str] = frozenset(), max_chars: int = 1 << 30) -> list[Piece]:
    """Return the output as pieces of at most `max_chars` characters; markers in `single_tokens` are tokens."""
    pattern = "|".join(re.escape(each) for each in sorted(single_tokens)) or "(?!)"
    pieces: list[Piece] = []
    for part in re.split(f"({pattern})", text):
        if part in single_tokens:
            pieces.append(Piece(part, part))
        else:
            pieces += [Piece(part[start : start + max_chars]) for start in range(0, len(part), max_chars)]
    return pieces


def joined(parts: Sequence[OutputPart]) -> Parsed:
    """Return the parts joined, after a check of the order in which calls come."""
    parsed = Parsed()
    is_open = False
    for part in parts:
        match part:
            case Reasoning(text):
                parsed.reasoning += text
            case Content(text):
                parsed.content += text
            case CallStart(index, name, call_id):
                assert not is_open
                assert index == len(parsed.calls)
                assert name
                is_open = True
                parsed.calls.append(Call(name, "", False, call_id))
            case CallArguments(index, text):
                assert is_open
                assert index == len(parsed.calls) - 1
                parsed.calls[-1].arguments += text
            case CallEnd(index, is_valid):
                assert is_open
                assert index == len(parsed.calls) - 1
                is_open = False
                parsed.calls[-1].is_valid = is_valid
        assert not isinstance(part, Reasoning | Content | CallArguments) or part.text
        assert is_open is isinstance(part, CallStart | CallArguments)
    assert not is_open
    return parsed


def parse(
    pieces: Sequence[Piece],
    tool_format: str | None,
    reasoning_format: str | None = None,
    tools: Sequence[Tool] = (),
    single_tokens: frozenset[str] = frozenset(),
    is_reasoning_open: bool | None = None,
    pieces_per_push: int = 1,
) -> Parsed:
    """Return the parts of an output."""
    parser = make_parser(tool_format, reasoning_format, tools, single_tokens, is_reasoning_open)
    parts: list[OutputPart] = []
    for start in range(0, len(pieces), pieces_per_push):
        parts += parser.push(pieces[start : start + pieces_per_push])
    return joined(parts + parser.flush())


def parse_all_ways(
    text: str,
    tool_format: str | None,
    reasoning_format: str | None = None,
    tools: Sequence[Tool] = (),
    markers: frozenset[str] = frozenset(),
    is_reasoning_open: bool | None = None,
) -> Parsed:
    """Return the parts of an output, after a check that they depend neither on its pieces nor on its tokens.

    markers: markers which are also tried as tokens.
    """
    results = [
        parse(pieces_of(text, single, size), tool_format, reasoning_format, tools, single, is_reasoning_open)
        for single in {frozenset[str](), markers}
        for size in (1, 2, 5, 1 << 30)
    ]
    for result in results[1:]:
        assert result == results[0]
    return results[0]

"""Calls as JSON between `<tool_call>` and `</tool_call>`."""

import pytest

from baton.router.parsing.base import CallArguments, CallEnd, CallStart, Content
from baton.router.parsing.formats import make_parser, markers
from tests.unit.router.parsing.outputs import Call, Parsed, parse, parse_all_ways, pieces_of

MARKERS = markers("hermes", "qwen3")

CASES = {
    "no call": ("\n\nHello <b> {x}\n", Parsed("\n\nHello <b> {x}\n")),
    "empty": ("", Parsed()),
    "call": ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', Parsed("", [Call("f", '{"x": 1}')])),
    "content first": (
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        Parsed("Sure.", [Call("f", "{}")]),
    ),
    "parallel": (
        '<tool_call>{"name": "f", "arguments": {"a": "}{"}}</tool_call>\n\n'
        '<tool_call>{"name": "g", "arguments": {"b": "\\"]"}}</tool_call>\n',
        Parsed("", [Call("f", '{"a": "}{"}'), Call("g", '{"b": "\\"]"}')]),
    ),
    "no closing markers": (
        '<tool_call>{"name":"f","arguments":{}}\n<tool_call>{"name":"g","arguments":{}}',
        Parsed("", [Call("f", "{}"), Call("g", "{}")]),
    ),
    "content after the call": (
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n\nDone.\n',
        Parsed("Done.\n", [Call("f", "{}")]),
    ),
    "content between": (
        'A\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>\nB <tool_call>{"name":"g","arguments":{}}</tool_call>',
        Parsed("A\nB", [Call("f", "{}"), Call("g", "{}")]),
    ),
    "nested": (
        '<tool_call>{"name":"f","arguments":{"a":{"b":[{"c":{}}]},"d":"é 😀 \\u00e9"}}</tool_call>',
        Parsed("", [Call("f", '{"a":{"b":[{"c":{}}]},"d":"é 😀 \\u00e9"}')]),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        Parsed("", [Call("f", '{"a": 1}')]),
    ),
    "parameters": (
        '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>',
        Parsed("", [Call("f", '{"a": 1}')]),
    ),
    "other members": (
        '<tool_call>{"id": 3, "name": "f", "arguments": {"a": 1}, "type": ["x"]}</tool_call>',
        Parsed("", [Call("f", '{"a": 1}')]),
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', Parsed("", [Call("f", "{}")])),
    "surplus brace": ('<tool_call>{"name": "f", "arguments": {}}}</tool_call>', Parsed("", [Call("f", "{}")])),
    "cut arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": "x',
        Parsed("", [Call("f", '{"a": "x', is_valid=False)]),
    ),
    "unbalanced arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": [1</tool_call>Bye',
        Parsed("Bye", [Call("f", '{"a": [1', is_valid=False)]),
    ),
    "arguments are no object": (
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        Parsed("", [Call("f", '"x"', is_valid=False)]),
    ),
    "escaped name": ('<tool_call>{"name": "\\u0066", "arguments": {}}</tool_call>', Parsed("", [Call("f", "{}")])),
    "no name": (
        'A\n<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>\nB',
        Parsed('A\n<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>\nB'),
    ),
    "empty name": (
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        Parsed('<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ),
    "no JSON": ("<tool_call> f(1) </tool_call>\n", Parsed("<tool_call> f(1) </tool_call>\n")),
    "marker twice": (
        '<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>',
        Parsed("<tool_call>", [Call("f", "{}")]),
    ),
    "marker without a call": ("a </tool_call> b", Parsed("a </tool_call> b")),
    "begun marker": ("a <tool_ca", Parsed("a <tool_ca")),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs(name: str) -> None:
    text, expected = CASES[name]
    assert parse_all_ways(text, "hermes", markers=MARKERS) == expected


def test_reasoning_comes_first() -> None:
    text = '<think>\nI call\n<tool_call>{"name": "g"}\n</think>\n\nNow\n<tool_call>{"name": "f"}</tool_call>'
    expected = Parsed("Now", [Call("f", "{}")], 'I call\n<tool_call>{"name": "g"}')
    assert parse_all_ways(text, "hermes", "qwen3", markers=MARKERS) == expected


def test_markers_count_only_as_tokens_if_they_are_tokens() -> None:
    text = 'Write <tool_call>{"name": "f"}</tool_call>'
    assert parse(pieces_of(text), "hermes", single_tokens=MARKERS) == Parsed(text)
    call = '<tool_call>{"name": "f", "arguments": {"x": "'
    single = frozenset({"<tool_call>"})
    pieces = [*pieces_of(call, single), *pieces_of('</tool_call><tool_call>"}}</tool_call>')]
    assert parse(pieces, "hermes", single_tokens=single) == Parsed("", [Call("f", '{"x": "</tool_call><tool_call>"}')])


def test_text_is_released_as_soon_as_it_cannot_begin_a_marker() -> None:
    parser = make_parser("hermes", None)
    assert parser.push(pieces_of("a <tool_")) == [Content("a")]
    assert parser.push(pieces_of("x")) == [Content(" <tool_x")]
    assert parser.push(pieces_of(" ")) == []
    assert parser.flush() == [Content(" ")]


def test_arguments_are_passed_on_as_they_arrive() -> None:
    parser = make_parser("hermes", None)
    assert parser.push(pieces_of('<tool_call>{"name": "f", "argum')) == [CallStart(0, "f")]
    assert parser.push(pieces_of('ents": {"a": "x')) == [CallArguments(0, '{"a": "x')]
    assert parser.push(pieces_of("y")) == [CallArguments(0, "y")]
    assert parser.push(pieces_of('"}}</tool_call>')) == [CallArguments(0, '"}'), CallEnd(0, is_valid_json=True)]
    assert parser.flush() == []

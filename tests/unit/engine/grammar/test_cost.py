"""The cost of grammars by their source: what is cheap compiles soon, and what is usual is cheap."""

import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.cost import MAX_COUNT, MAX_JSON_CHARS, MAX_OPTIONAL, MAX_TEXT_COST, is_cheap, is_surely_cheap
from baton.engine.grammar.grammar import Grammar, GrammarKind
from tests.unit.engine.grammar.test_trial import ENDLESS, LARGE, WORD, optional_properties
from tests.unit.engine.grammar_rig import backend, schema_grammar


def excluding(number: int) -> Grammar:
    words = [f"{place:020}" for place in range(number)]
    part = {"type": "any_text", "excludes": words}
    return Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": part}))


def tag_grammar(part: dict[str, object]) -> Grammar:
    return Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": part}))


def array_of(schemas: list[dict[str, object]]) -> Grammar:
    return schema_grammar({"type": "array", "prefixItems": schemas, "items": False})


def integers(number: int, num_values: int) -> Grammar:
    """Integers whose multiples the compiler lists."""
    return schema_grammar({"anyOf": [
        {"type": "integer", "multipleOf": 1, "minimum": place, "maximum": place + num_values - 1}
        for place in range(number)
    ]})  # fmt: skip


def texts(number: int) -> Grammar:
    schemas: list[dict[str, object]] = [
        {"type": "string", "minLength": place % MAX_COUNT, "maxLength": MAX_COUNT} for place in range(number)
    ]
    return array_of(schemas)


def arrays(number: int) -> Grammar:
    schemas: list[dict[str, object]] = [
        {"type": "array", "items": {"type": "string"}, "minItems": place % MAX_COUNT, "maxItems": MAX_COUNT}
        for place in range(number)
    ]
    return array_of(schemas)


def multiples(number: int) -> Grammar:
    return array_of([{"type": "integer", "multipleOf": MAX_COUNT - place % 2} for place in range(number)])


def repeats(number: int) -> Grammar:
    part: dict[str, object] = {"type": "const_string", "value": "a"}
    for _ in range(number):
        part = {"type": "repeat", "min": 0, "max": MAX_COUNT, "content": {
            "type": "tag", "begin": "a", "content": part, "end": ""}}  # fmt: skip
    return tag_grammar(part)


def sought(name: str, number: int) -> Grammar:
    """A tag with a number of texts at which free text ends."""
    words = [f"{place:03}q" for place in range(number)]
    if name == "rules":
        rules = [[word, {"type": "const_string", "value": "x"}] for word in words]
        return tag_grammar({"type": "dispatch", "rules": rules, "loop": True})
    if name == "triggers":
        tags = [{"type": "tag", "begin": word, "content": {"type": "any_text"}, "end": "q"} for word in words]
        return tag_grammar({"type": "triggered_tags", "triggers": words, "tags": tags})
    return tag_grammar({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": words})


SERIES: list[Callable[[int], Grammar]] = [
    texts, arrays, multiples, lambda number: integers(number, 512), lambda number: integers(1, 256 * number),
    repeats, *(partial(sought, name) for name in ("rules", "triggers", "end")),
]  # fmt: skip


def cheap_at_its_bounds(rng: random.Random) -> Grammar:
    """A random grammar that is just cheap."""
    kind = rng.choice(["regex", "schema", "number"])
    if kind == "number":
        make = rng.choice(SERIES)
        return make(next(number for number in range(1, 100) if not is_cheap(make(number + 1))))
    unit = rng.choice(["[a-z]?", "(a|ab)?", ".?", r"\w?", "(.*a)", "[a-z]*"])
    if kind == "regex":
        count = rng.choice([1, 2])
        return Grammar(GrammarKind.REGEX, f"({unit * ((MAX_TEXT_COST // count - 10) // len(unit))}){{1,{count}}}")
    leaf: dict[str, object] = {f"p{i}": {"type": "string"} for i in range(MAX_OPTIONAL)}
    leaf |= {
        f"q{i}": {"type": "string", "pattern": unit * (MAX_TEXT_COST // len(unit))} for i in range(rng.randint(0, 4))
    }
    schema: dict[str, object] = {
        "type": "array",
        "items": {"type": "object", "properties": leaf, "required": [name for name in leaf if name[0] == "q"]},
    }
    while True:
        bounds = {"minItems": rng.randint(0, MAX_COUNT), "maxItems": MAX_COUNT}
        larger = {"anyOf": [schema, {"type": "array", "items": {}, **bounds}]}
        if not is_cheap(schema_grammar(larger)):
            return schema_grammar(schema)
        schema = larger


@pytest.mark.parametrize("make", SERIES)
def test_what_has_many_parts_is_cheap_in_small_numbers_alone(tmp_path: Path, make: Callable[[int], Grammar]) -> None:
    number = next(number for number in range(1, 100) if not is_cheap(make(number)))
    assert number > 2
    assert not is_cheap(make(60))
    started_s = time.thread_time()
    backend(tmp_path).compile(make(number - 1))
    assert time.thread_time() - started_s < 2


@pytest.mark.parametrize("seed", range(24))
def test_cheap_grammars_compile_soon(tmp_path: Path, seed: int) -> None:
    grammar = cheap_at_its_bounds(random.Random(seed))
    xgrammar = backend(tmp_path)
    assert is_cheap(grammar)
    started_s = time.thread_time()
    try:
        xgrammar.compile(grammar)
    except InvalidRequest:
        return
    assert time.thread_time() - started_s < 2


@pytest.mark.parametrize("grammar", [
    ENDLESS, LARGE, optional_properties(MAX_OPTIONAL + 1), WORD,
    schema_grammar({"properties": {f"p{i}": {"type": "null"} for i in range(500)}, "required": ["p0"] * 500}),
    schema_grammar({"type": "string", "maxLength": MAX_COUNT + 1}),
    schema_grammar({"type": "integer", "multipleOf": 1, "minimum": 0}), integers(200, 9999), texts(280),
    sought("rules", 300),
    tag_grammar({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": "b" * 4000}),
    schema_grammar({"anyOf": [{"type": "string", "pattern": "^a{1,200}$"}]}),
    schema_grammar({"type": "object", "patternProperties": {"^a{1,200}$": {"type": "null"}}}),
    schema_grammar({"type": "string", "pattern": "[{9999999999999999}]" * 2}),
    *(Grammar(GrammarKind.REGEX, text) for text in (
        "(a*)*", "(a?b)+", "((a{2})b){1,}", "(([(]|a+)(b))*", "((a*))*", "((|.)(|.))*", "(a||b)+", "((a|))*")),
    Grammar(GrammarKind.REGEX, "a" + "{9999999999999999}" * 2), Grammar(GrammarKind.REGEX, f"a{{{'9' * 5000}}}"),
    schema_grammar({"description": "x" * MAX_JSON_CHARS}),
    excluding(7), Grammar(GrammarKind.CHOICE, json.dumps(["x" * 600, "y" * 600])),
    Grammar(GrammarKind.EBNF, 'root ::= "a"'),
    Grammar(GrammarKind.EBNF, 'root ::= "a"{1,99}'),
    Grammar(GrammarKind.EBNF, f'root ::= "{"a" * MAX_TEXT_COST}"'),
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": {
        "type": "repeat", "min": 0, "max": 1000, "content": {"type": "const_string", "value": "a"}}})),
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": {
        "type": "star", "content": {"type": "plus", "content": {"type": "regex", "pattern": ".?"}}}})),
    *(Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": {
        "type": "star", "content": content}})) for content in (
        {"type": "const_string", "value": ""},
        {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ""})),
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": {
        "type": "grammar", "grammar": 'root ::= "a"{1,99}'}})),
])  # fmt: skip
def test_what_may_be_expensive_is_tried(grammar: Grammar) -> None:
    assert not is_cheap(grammar)


@pytest.mark.parametrize("grammar", [
    Grammar(GrammarKind.JSON_OBJECT), Grammar(GrammarKind.CHOICE, '["a", "b"]'), Grammar(GrammarKind.REGEX, "[0-9]{4}"),
    *(Grammar(GrammarKind.REGEX, text) for text in (
        "(a*)b*", "(a+)?", "(ab[*])*", r"(a\*)+", "(a*b){2}", ")*(", "(a|b)*", "((a)(b|c))+")),
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": {
        "type": "star", "content": {"type": "const_string", "value": "a"}}})),
    schema_grammar({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50)},
                    "required": [f"p{i}" for i in range(50)]}),
    schema_grammar({"type": "object", "required": [f"p{i}" for i in range(50)], "properties": {
        f"p{i}": {"type": "array", "maxItems": 20, "items": {"type": "string", "minLength": 1, "maxLength": 20}}
        if i < 5 else {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100} if i < 10
        else {"type": "string", "pattern": "^[a-z]{2}$"} if i < 12 else {"type": "number"} for i in range(50)}}),
    tag_grammar({"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [
        {"type": "tag", "begin": f'<tool_call>{{"name": "tool{i}", "arguments": ', "end": "}</tool_call>",
         "content": {"type": "json_schema", "json_schema": {"type": "object"}}} for i in range(20)]}),
])  # fmt: skip
def test_usual_grammars_are_not_tried(grammar: Grammar) -> None:
    assert is_cheap(grammar)


def test_a_number_that_is_too_large_is_not_surely_cheap() -> None:
    schema = {"type": "integer", "multipleOf": 1, "minimum": -(10**400), "maximum": 10**400}
    assert not is_surely_cheap(schema_grammar(schema))


@pytest.mark.parametrize("bounds", [(-(10**400), 10**400), (-1e308, 10**400), (-1e308, 1e308)])
def test_huge_ranges_are_expensive(bounds: tuple[float, float]) -> None:
    low, high = bounds
    assert not is_cheap(schema_grammar({"type": "integer", "multipleOf": 1, "minimum": low, "maximum": high}))

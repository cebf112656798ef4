"""Schemas: what is refused by name, and that everything else is enforced."""

import json
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from baton.engine.errors import InvalidRequest
from baton.engine.grammar import grammar as grammar_module
from baton.engine.grammar.grammar import MAX_NESTING, Grammar, GrammarKind
from baton.engine.grammar.xgrammar_backend import XGrammarBackend
from tests.marks import each_value
from tests.unit.engine.grammar_rig import EOS, backend, byte_tokenizer, drawn, schema_grammar

REFUSED: list[tuple[Any, str]] = [
    ({"not": {"type": "string"}}, "the schema: not is not supported"),
    ({"type": "object", "properties": {"a": {"if": {}, "then": {}}}}, "properties.a: if is not supported"),
    ({"type": "object", "dependentRequired": {}}, "dependentRequired is not supported"),
    ({"type": "array", "items": {"type": "array", "contains": {}}}, "items: contains is not supported"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems is not supported"),
    ({"allOf": [{"type": "object"}, {"type": "object"}]}, "allOf with several schemas"),
    ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}}, "minimum next to \\$ref"),
    ({"anyOf": [{"type": "null"}], "type": "object"}, "type next to anyOf"),
    ({"enum": [1, "a"], "type": "string"}, "type next to enum"),
    ({"const": 1, "minimum": 0}, "minimum next to const"),
    ({"minimum": 3}, "minimum needs a type"),
    ({"required": ["a"]}, "required needs a type"),
    ({"type": "strin"}, "type must be one of"),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, 'required has "b"'),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf is only supported"),
    ({"type": "integer", "multipleOf": 5000}, "multipleOf is only supported"),
    ({"type": "integer", "multipleOf": 5, "minimum": 0}, "needs both a minimum and a maximum"),
    ({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 99999}, "under 10000 apart"),
    ({"type": "string", "pattern": "a", "minLength": 3}, "minLength next to pattern"),
    ({"type": "string", "pattern": "a", "format": "date"}, "format next to pattern"),
    ({"type": "string", "format": "date", "maxLength": 3}, "maxLength next to format"),
    ({"type": "string", "format": "iban"}, "format must be one of"),
    ({"type": "string", "maxLength": "3"}, "maxLength must be a whole number"),
    ({"type": "string", "pattern": "a(?=b)"}, "lookaround at character 2"),
    ({"type": "string", "pattern": "a^b"}, "\\^ at character 2"),
    ({"type": "string", "pattern": 'say "x"'}, "a quote, backslash or control character at character 5"),
    ({"type": "string", "pattern": "a\\\\b"}, "at character 2, which JSON strings must escape"),
    ({"type": "string", "pattern": "[\\n]"}, "at character 2, which JSON strings must escape"),
    ({"type": "string", "pattern": "\\u0022"}, "at character 1, which JSON strings must escape"),
    ({"type": "object", "patternProperties": {"^a": {}, "^b": {}}}, "with one pattern"),
    ({"type": "object", "propertyNames": {}, "additionalProperties": {"type": "null"}}, "propertyNames next to"),
    ({"$ref": "https://example.com/schema"}, "must point into the same schema"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "exclude each other"),
    ([1], "a schema must be an object"),
    ({"type": "object", "properties": {"a": {}}, "required": [{}]}, "required must be a list of strings"),
    ({"type": "object", "properties": {"a": {}}, "required": "a"}, "required must be a list of strings"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1.5, "maximum": 10**400}, "maximum must be a number from -1e"),
    ({"type": "integer", "multipleOf": 10**400}, "multipleOf is only supported"),
    ({"type": "integer", "exclusiveMinimum": True}, "exclusiveMinimum must be a number"),
    ({"type": "number", "minimum": "1"}, "minimum must be a number"),
    (
        {"type": "number", "minimum": 2.5, "exclusiveMaximum": 2.5},
        "minimum and exclusiveMaximum have no number between",
    ),
    ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3}, "have no number between them"),
    ({"type": "integer", "minimum": 2.2, "maximum": 2.8}, "minimum and maximum have no number between them"),
    (
        {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": False},
        "next to propertyNames would",
    ),
    ({"type": "number", "maximum": 1e-7}, "maximum is only supported with up to 6 decimals"),
    ({"type": "number", "minimum": 37.7749295}, "minimum is only supported with up to 6 decimals"),
    *(({name: []}, f"{name} is an empty list") for name in ("type", "enum", "anyOf", "oneOf", "allOf")),
    ({"const": 1 << 63}, "integers of 64 bits"),
    ({"enum": [1, {"a": [-(1 << 63) - 1]}]}, "integers of 64 bits"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "exclude each other"),
    ({"type": "object", "properties": {"a": {}}, "propertyNames": {}}, "propertyNames next to properties"),
    ({"type": "object", "propertyNames": {"enum": ["a", 1]}}, "propertyNames must be a schema of strings"),
    ({"type": "object", "propertyNames": {"type": "integer"}}, "propertyNames must be a schema of strings"),
    ({"type": "object", "propertyNames": {"$ref": "#"}}, "propertyNames with \\$ref is not supported"),
    ({"type": "object", "propertyNames": {"anyOf": [{}]}}, "propertyNames with anyOf is not supported"),
    ({"type": "object", "minProperties": 2}, "minProperties over 1 is only supported"),
    ({"type": "object", "minProperties": "2"}, "minProperties must be a whole number"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}}, "\\$ref with escapes"),
    ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}}, "\\$ref with escapes"),
    ({"$ref": 5}, "\\$ref must point into the same schema"),
    ({"anyOf": [{"type": "string", "pattern": "a" * 8192}] * 3}, "patterns have over 16384 characters"),
]
ENFORCED: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": -3}, "b": {}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "number", "exclusiveMinimum": 0.5}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "unevaluatedProperties": False},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "null"}}},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "integer"}], "items": False},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]+[^\\n]\\d$"},
    {"type": "string", "format": "email"},
    {"type": "integer", "exclusiveMinimum": 2.5, "maximum": 4.5},
    {"type": "integer", "minimum": -1.5, "exclusiveMaximum": 1},
    {"type": "array", "items": {"type": "string", "format": "ipv4"}, "minItems": 3},
    {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 30},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": key}}, "required": ["k"], "additionalProperties": False}
            for key in ("p", "q")
        ]
    },
    {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["q", "r"]}},
    {"type": "number", "minimum": 0.123456, "exclusiveMaximum": 0.1235},
    {"type": "number", "minimum": -1e18, "maximum": 1e18},
    {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
    {"enum": [(1 << 63) - 1, -(1 << 63)]},
    {"enum": ["a\n\"é", 1.5, None, {"x": [1]}]},
    {"type": "string", "enum": ["a", "b"], "description": "one of two", "default": "a"},
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
            }
        },
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def xgrammar(tmp_path_factory: pytest.TempPathFactory) -> XGrammarBackend:
    return backend(tmp_path_factory.mktemp("tokenizer"))


def check_outputs(xgrammar: XGrammarBackend, schema: Any, is_open: bool, num_outputs: int) -> int:
    """Draws outputs and validates those that were not cut off; returns their number."""
    grammar = schema_grammar(schema, is_open)
    grammar.validate()
    compiled, tokenizer, num_complete = xgrammar.compile(grammar), byte_tokenizer(), 0
    for seed in range(num_outputs):
        output = list(drawn(compiled, seed))
        if output[-1] == EOS:
            num_complete += 1
            text = tokenizer.decode(output[:-1])
            if "\ufffd" not in text:  # otherwise it is not UTF-8: these outputs are drawn from single bytes
                jsonschema.validate(json.loads(text), schema)
    return num_complete


@pytest.mark.parametrize(("schema", "problem"), REFUSED)
def test_what_would_be_ignored_is_refused_by_name(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        schema_grammar(schema).validate()


@each_value
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("schema", ENFORCED, ids=lambda schema: json.dumps(schema)[:60])
def test_every_complete_output_is_valid(xgrammar: XGrammarBackend, schema: Any, is_open: bool) -> None:
    assert check_outputs(xgrammar, schema, is_open, 30) > 0


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    name: str


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


CAT, DOG = '{"pet":{"kind":"cat","lives":9}}', '{"pet":{"kind":"puppy","name":"Rex"}}'
MIXED = ('{"pet":{"kind":"cat","name":"Rex"}}', '{"pet":{"kind":"dog","lives":9}}', '{"pet":{"kind":"cow"}}')


def test_a_discriminated_union_of_pydantic_has_one_of_its_forms(xgrammar: XGrammarBackend) -> None:
    schema = Owner.model_json_schema()
    assert "discriminator" in schema["properties"]["pet"]
    assert check_outputs(xgrammar, schema, False, 30) > 0
    compiled, tokenizer = xgrammar.compile(schema_grammar(schema)), byte_tokenizer()

    def is_accepted(text: str) -> bool:
        matcher = compiled.matcher(frozenset({EOS}))
        return all(matcher.accept(token_id) for token_id in (*tokenizer.encode(text).ids, EOS))

    assert [is_accepted(text) for text in (CAT, DOG, *MIXED)] == [True, True, False, False, False]


def test_an_open_schema_allows_what_it_does_not_mention(xgrammar: XGrammarBackend) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    keys = set()
    for is_open in (False, True):
        compiled = xgrammar.compile(schema_grammar(schema, is_open))
        for seed in range(20):
            output = list(drawn(compiled, seed))
            if output[-1] == EOS:
                keys |= {(is_open, key) for key in json.loads(byte_tokenizer().decode(output[:-1]))}
    assert {key for is_open, key in keys if not is_open} == {"a"}
    assert {key for is_open, key in keys if is_open} - {"a"}


def test_nesting_is_bounded_before_anything_is_compiled() -> None:
    for depth in (MAX_NESTING + 1, 10_000):
        with pytest.raises(InvalidRequest, match="nested over 64 levels deep"):
            Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * depth + "{}" + "}" * depth).validate()


def test_an_unexpected_fault_of_the_check_is_an_invalid_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(schema: object) -> None:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(grammar_module, "check_schema", fault)
    with pytest.raises(InvalidRequest, match="wrong type or size"):
        schema_grammar({}).validate()


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", '{"const": NaN}', '{"const": "\ud800"'])
def test_json_that_cannot_be_parsed_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^grammar: "):
        Grammar(GrammarKind.JSON_SCHEMA, text).validate()


KEYS = st.sampled_from(["a", "b", "é", 'q"', ""])
CONSTANTS = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=3))


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    lengths = st.integers(0, 3).flatmap(
        lambda least: st.integers(least, 5).map(lambda most: {"type": "string", "minLength": least, "maxLength": most})
    )
    ranges = st.integers(-50, 50).flatmap(
        lambda low: st.builds(
            lambda kind, width: {"type": kind, "minimum": low, "maximum": low + width},
            st.sampled_from(["integer", "number"]),
            st.integers(0, 100),
        )
    )
    plain = st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind})
    listed = st.lists(CONSTANTS, min_size=1, max_size=3).map(lambda values: {"enum": values})
    patterns = st.sampled_from(["^[a-z]{1,3}$", "\\d+", "a|bc", "[^x]?"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    )
    return st.one_of(plain, lengths, ranges, listed, patterns)


def containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(KEYS, inner, min_size=1, max_size=3).flatmap(
        lambda named: st.builds(
            lambda required, extra: {
                "type": "object", "properties": named, "required": sorted(required), "additionalProperties": extra
            },
            st.sets(st.sampled_from(sorted(named))),
            st.one_of(st.just(False), inner),
        )
    )  # fmt: skip
    arrays = st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    choices = st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(objects, arrays, choices)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=st.recursive(leaves(), containers, max_leaves=6), is_open=st.booleans())
def test_outputs_of_random_schemas_are_valid(xgrammar: XGrammarBackend, schema: Any, is_open: bool) -> None:
    check_outputs(xgrammar, schema, is_open, 3)

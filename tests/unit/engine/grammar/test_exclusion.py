"""Which schemas of `oneOf` exclude each other, and that the check takes linear time."""

import json
import time
from typing import Any

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.schema.exclusion import Exclusion
from baton.engine.grammar.schema.json_schema import MAX_ONE_OF
from tests.unit.engine.grammar_rig import schema_grammar


def tagged(**constants: Any) -> dict[str, Any]:
    """A schema of objects whose properties have these values."""
    named = {name: {"const": value} for name, value in constants.items()}
    return {"type": "object", "properties": named, "required": sorted(constants)}


EXCLUSIVE: list[list[Any]] = [
    [{}],
    [{"type": "string"}, {"type": ["integer", "null"]}, {"const": True}],
    [{"type": "integer"}, {"const": 1.5}],
    [{"enum": [1, 2]}, {"enum": [True, "1"]}, {"const": [1]}, {"const": {"a": 1}}],
    [tagged(k="p"), tagged(k="q", z=1), {"type": "null"}],
    [tagged(k="p", z=1), tagged(k="p", z=2)],
    [{"type": "object", "properties": {"k": tagged(a=n)}, "required": ["k"]} for n in range(3)],
]
EXCLUSIVE_SCALARS = [each for each in EXCLUSIVE[:-1] if {"const": [1]} not in each]
OVERLAPPING: list[list[Any]] = [
    [{}, {"type": "null"}],
    [True, {"type": "null"}],
    [{"type": "integer"}, {"type": "number"}],
    [{"type": "integer"}, {"const": 1.0}],
    [{"const": 1}, {"const": 1.0}],
    [{"const": {"a": [1]}}, {"const": {"a": [1.0]}}],
    [{"const": 10**20}, {"const": 1e20}],
    [{"enum": [1, 2]}, {"enum": [3]}, {"enum": [2.0]}],
    [tagged(k="p"), tagged(z="q")],
    [tagged(k="p"), tagged(k="q"), {"type": ["object", "null"]}],
    [{"type": ["object", "null"]}, tagged(k="p")],
    [tagged(k="p"), {"const": {"k": "p"}}],
    [{"type": "object", "properties": {"k": {"const": n}}} for n in range(2)],  # k may be absent
]


@pytest.mark.parametrize("schemas", EXCLUSIVE, ids=json.dumps)
def test_schemas_that_exclude_each_other(schemas: list[Any]) -> None:
    assert Exclusion({}).holds(schemas)
    assert Exclusion({}).holds(schemas[::-1])


@pytest.mark.parametrize("schemas", OVERLAPPING, ids=json.dumps)
def test_schemas_that_may_overlap(schemas: list[Any]) -> None:
    assert not Exclusion({}).holds(schemas)
    assert not Exclusion({}).holds(schemas[::-1])


def test_many_and_large_schemas_are_compared_at_once() -> None:
    constants: list[Any] = [{"enum": list(range(start, start + 80))} for start in range(0, 80 * MAX_ONE_OF, 80)]
    shared = {f"name{number}": {"type": "null"} for number in range(20)}
    objects: list[Any] = [
        {"type": "object", "properties": {**shared, "k": {"const": n}}, "required": [*shared, "k"]} for n in range(120)
    ]
    for schemas in (constants, objects):
        started_s = time.thread_time()
        assert Exclusion({}).holds(schemas)
        assert time.thread_time() - started_s < 0.5  # comparing each pair takes seconds


def referred(*schemas: Any, **further: Any) -> dict[str, Any]:
    """A schema of one of these, each behind a reference."""
    named = {f"d{place}": schema for place, schema in enumerate(schemas)}
    return {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in named], "$defs": {**named, **further}}


@pytest.mark.parametrize("schemas", EXCLUSIVE_SCALARS, ids=json.dumps)
def test_references_are_followed(schemas: list[Any]) -> None:
    schema_grammar(referred(*schemas)).validate()


def test_properties_behind_references_are_followed() -> None:
    kinds = [{"type": "object", "properties": {"k": {"$ref": f"#/$defs/k{n}"}}, "required": ["k"]} for n in range(2)]
    schema_grammar(referred(*kinds, k0={"const": "p"}, k1={"$ref": "#/$defs/q"}, q={"enum": ["q", "r"]})).validate()
    with pytest.raises(InvalidRequest, match="exclude each other"):
        schema_grammar(referred(*kinds, k0={"const": "q"}, k1={"enum": ["q", "r"]})).validate()


@pytest.mark.parametrize("schemas", OVERLAPPING, ids=json.dumps)
def test_references_to_schemas_that_may_overlap_are_refused(schemas: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        schema_grammar(referred(*schemas)).validate()


def test_references_that_lead_nowhere_or_in_a_circle_show_nothing() -> None:
    circle = {"$ref": "#/$defs/d0"}
    node = {"type": "object", "properties": {"next": circle}, "required": ["next"]}
    for schema in (referred({"$ref": "#/$defs/d1"}, circle), referred(node, node), {"oneOf": [{"$ref": "#/x"}] * 2}):
        assert not Exclusion(schema).holds(schema["oneOf"])


def test_work_behind_references_is_bounded() -> None:
    large = [{"enum": [f"{name}{number}" for number in range(1000)]} for name in "pq"]
    schema = referred(*large)
    doubling: dict[str, Any] = {"d20": {"type": "null"}}
    for depth in range(20):
        inner = {"$ref": f"#/$defs/d{depth + 1}"}
        doubling[f"d{depth}"] = {"type": "object", "properties": {"a": inner, "b": inner}, "required": ["a", "b"]}
    nested = {"oneOf": [{"$ref": "#/$defs/d0"}] * 2, "$defs": doubling}
    started_s = time.thread_time()
    exclusion = Exclusion(schema)
    assert exclusion.holds(schema["oneOf"])
    assert [exclusion.holds(schema["oneOf"]) for _ in range(1000)][-1] is False
    assert not Exclusion(nested).holds(nested["oneOf"])
    assert time.thread_time() - started_s < 0.5


def test_the_number_of_schemas_is_bounded() -> None:
    schema_grammar({"oneOf": [{"const": number} for number in range(MAX_ONE_OF)]}).validate()
    with pytest.raises(InvalidRequest, match="oneOf has 257 schemas, over the limit of 256; use anyOf"):
        schema_grammar({"oneOf": [{"const": number} for number in range(MAX_ONE_OF + 1)]}).validate()

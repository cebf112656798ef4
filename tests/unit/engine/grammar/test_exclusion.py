"""Which schemas of `oneOf` exclude each other, and that the check takes linear time."""

import json
import time
from typing import Any

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.exclusion import exclude_each_other
from baton.engine.grammar.json_schema import MAX_ONE_OF
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
    assert exclude_each_other(schemas)
    assert exclude_each_other(schemas[::-1])


@pytest.mark.parametrize("schemas", OVERLAPPING, ids=json.dumps)
def test_schemas_that_may_overlap(schemas: list[Any]) -> None:
    assert not exclude_each_other(schemas)
    assert not exclude_each_other(schemas[::-1])


def test_many_and_large_schemas_are_compared_at_once() -> None:
    constants: list[Any] = [{"enum": list(range(start, start + 80))} for start in range(0, 80 * MAX_ONE_OF, 80)]
    shared = {f"name{number}": {"type": "null"} for number in range(20)}
    objects: list[Any] = [
        {"type": "object", "properties": {**shared, "k": {"const": n}}, "required": [*shared, "k"]} for n in range(120)
    ]
    for schemas in (constants, objects):
        started_s = time.thread_time()
        assert exclude_each_other(schemas)
        assert time.thread_time() - started_s < 0.5  # comparing each pair takes seconds


def test_the_number_of_schemas_is_bounded() -> None:
    schema_grammar({"oneOf": [{"const": number} for number in range(MAX_ONE_OF)]}).validate()
    with pytest.raises(InvalidRequest, match="oneOf has 257 schemas, over the limit of 256; use anyOf"):
        schema_grammar({"oneOf": [{"const": number} for number in range(MAX_ONE_OF + 1)]}).validate()

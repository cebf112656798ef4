"""Schemas that nothing finite matches are refused, in linear time."""

import time
from itertools import pairwise
from typing import Any

import pytest

from baton.engine.grammar.schema.json_schema import check_schema

SELF: dict[str, Any] = {"$ref": "#"}


def needing(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **more}


ENDLESS: list[tuple[Any, str]] = [
    (SELF, "the schema"),
    (needing(SELF), "the schema"),
    (needing({"type": "array", "items": SELF, "minItems": 1}), "the schema"),
    (needing({"anyOf": [SELF, needing(SELF)]}), "the schema"),
    (
        needing({"$ref": "#/$defs/b"}, **{"$defs": {"b": {"$ref": "#/$defs/c"}, "c": {"$ref": "#/$defs/b"}}}),
        "the schema",
    ),
    ({"allOf": [needing(SELF)]}, "the schema"),
    ({"type": "array", "prefixItems": [True, SELF], "minItems": 2}, "the schema"),
]
FINITE: list[Any] = [
    {"type": "object", "properties": {"a": SELF}},
    needing({"anyOf": [SELF, {"type": "null"}]}),
    needing({"type": "array", "items": SELF}),
    {"type": "array", "prefixItems": [True, SELF], "minItems": 1},
    needing({"enum": [1]}),
    needing(True),
    needing({"$ref": "#/$defs/b"}, **{"$defs": {"b": {"type": "string"}, "endless": {"$ref": "#/$defs/endless"}}}),
    {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
]


@pytest.mark.parametrize(("schema", "place"), ENDLESS)
def test_endless_schemas_are_refused(schema: Any, place: str) -> None:
    with pytest.raises(ValueError, match=f"^{place}: it contains itself without an end"):
        check_schema(schema)


@pytest.mark.parametrize("schema", FINITE)
def test_finite_schemas_are_accepted(schema: Any) -> None:
    check_schema(schema)


def test_a_long_chain_takes_linear_time() -> None:
    names = [f"d{number}" for number in range(1000)]
    chain = {name: needing({"$ref": f"#/$defs/{later}"}) for name, later in pairwise(names)}
    begun_s = time.process_time()
    check_schema({"$ref": "#/$defs/d0", "$defs": {**chain, "d999": {"type": "string"}}})
    with pytest.raises(ValueError, match="without an end"):
        check_schema({"$ref": "#/$defs/d0", "$defs": {**chain, "d999": {"$ref": "#/$defs/d0"}}})
    assert time.process_time() - begun_s < 1

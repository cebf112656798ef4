"""Paths in errors, and their memory."""

import json
import tracemalloc
from typing import Any

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.schema.place import Place

LONG = "k" * 50_000


def test_paths_are_shortened() -> None:
    assert str(Place()) == ""
    assert str(Place("[3]", Place(".items", Place()))) == "items[3]"
    assert str(Place(f".{LONG}")) == "k" * 79 + "..."
    place = Place()
    for number in range(100):
        place = Place(f".name{number}", place)
    assert str(place).startswith("...")
    assert str(place).endswith(".name98.name99")
    assert len(str(place)) == 303


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.JSON_SCHEMA, {"properties": {LONG: {"anyOf": [*[True] * 4000, {"not": {}}]}}}),
        (GrammarKind.STRUCTURAL_TAG, {LONG: [*[0] * 20_000, {"type": "regex", "pattern": "a^"}]}),
    ],
)
def test_a_long_name_with_many_parts_takes_little_memory(kind: GrammarKind, source: Any) -> None:
    grammar = Grammar(kind, json.dumps(source))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as caught:
            grammar.validate()
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 300


def test_the_number_of_schemas_in_a_schema_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="contains over 4096 schemas"):
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"anyOf": [{}] * 4096})).validate()


def test_the_number_of_parts_of_a_structural_tag_is_bounded() -> None:
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"tags": [{}] * 4095})).validate()
    with pytest.raises(InvalidRequest, match="the tag has over 4096 parts"):
        Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"tags": [{}] * 4096})).validate()

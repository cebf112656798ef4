"""Counts of the parts of a JSON text, compared with a parser's."""

import random
import time
from typing import Any

import orjson
import pytest

from baton.router.http import json_parts
from baton.router.http.json_parts import MAX_OBJECTS, OBJECTS, count_parts, fullest_field

MANY = 1 << 30


def parts_of(value: Any) -> tuple[int, int]:
    """Return the number of lists, objects and keys, and of commas."""
    if isinstance(value, list):
        inner = [parts_of(each) for each in value]
        return 1 + sum(each[0] for each in inner), max(0, len(value) - 1) + sum(each[1] for each in inner)
    if isinstance(value, dict):
        inner = [parts_of(each) for each in value.values()]
        return 1 + len(value) + sum(each[0] for each in inner), max(0, len(value) - 1) + sum(each[1] for each in inner)
    return 0, 0


def some(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth else 4)
    if kind < 2:
        return "".join(rng.choice('\\"[]{}:,n\u4e2d a') for _ in range(rng.randrange(30)))
    if kind < 4:
        return rng.choice([1, -2.5, None, True])
    if kind == 4:
        return [some(rng, depth - 1) for _ in range(rng.randrange(6))]
    return {f"{place}{some(rng, 0)}": some(rng, depth - 1) for place in range(rng.randrange(6))}


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64, 1 << 18])
def test_counts_equal_those_of_a_parser(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(json_parts, "CHUNK_BYTES", chunk_bytes)
    rng = random.Random(chunk_bytes)
    for _ in range(100):
        text = orjson.dumps(some(rng, 4))
        value = orjson.loads(text)
        found = count_parts(bytearray(text) if rng.random() < 0.5 else text, MANY, MANY)
        assert (found.num_objects, found.num_elements) == parts_of(value), text


def test_counting_stops_above_the_limit() -> None:
    found = count_parts(b"[" + b"1," * (1 << 20), MANY, 100)
    assert 100 < found.num_elements < 1 << 18
    assert count_parts(b"[" * (1 << 20), 100, MANY).num_objects <= 1 << 18


PAIRS = b"[" + b"{}," * 200 + b"{}]"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"a": 1, "b": %b, "c": []}' % PAIRS, "b"),
        (b'{"a": {"b": %b}}' % PAIRS, "a"),
        (b'{"a": "\\\\\\"{:[", "\\u0062\\"": %b}' % PAIRS, 'b"'),
        (b'{"a": %b, "b": %b, "c": %b}' % ((PAIRS[:120] + b"]",) * 3), None),
        (PAIRS, None),
        (b'{"a' + PAIRS, None),
        (b'{"a": "' + b"x" * 500, None),
        (b"", None),
    ],
)
def test_the_field_with_most_parts(text: bytes, field: str | None) -> None:
    assert fullest_field(text, OBJECTS, 150) == field
    assert fullest_field(bytearray(text), OBJECTS, 150) == field


@pytest.mark.parametrize("text", [b'{"a":"' + rb"\"" * (4 << 20), b'{"a":[' + b"[]," * (4 << 20), b'"\\' * (4 << 20)])
def test_the_time_to_find_the_field_is_bounded(text: bytes) -> None:
    started_s = time.thread_time()
    fullest_field(text, OBJECTS, MAX_OBJECTS)
    assert time.thread_time() - started_s < 1

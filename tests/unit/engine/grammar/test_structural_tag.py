"""Structural tags with numbers that the compiler refuses without a reason, or reads as others."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.forced_length import has_short_forced_texts
from baton.engine.grammar.grammar import Grammar, GrammarKind
from tests.unit.engine.grammar_rig import EOS, backend, byte_tokenizer

OLDER = {
    "structures": [{"begin": "<a>", "schema": {"type": "boolean"}, "end": "</a>"}], "triggers": ["<a"]
}  # fmt: skip
CONTENT = {"type": "const_string", "value": "a"}


def validate(part: dict[str, Any]) -> None:
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": part})).validate()


def repeat(minimum: object, maximum: object) -> dict[str, Any]:
    return {"type": "repeat", "min": minimum, "max": maximum, "content": CONTENT}


@pytest.mark.parametrize(("minimum", "maximum"), [(0, -1), (0, 0), (3, 3), (10**9, -1), (0, 10**9)])
def test_counts_of_a_repeat(minimum: int, maximum: int) -> None:
    validate(repeat(minimum, maximum))


@pytest.mark.parametrize(
    ("minimum", "maximum", "reason"),
    [
        (0, -5, r"format: max must be a whole number from -1 \(no maximum\) to 1000000000"),
        (0, -(10**300), "format: max must be a whole number"),
        (0, 1e300, "format: max must be a whole number"),
        (0, None, "format: max must be a whole number"),
        (10**300, -5, "format: min must be a whole number from 0 to 1000000000"),
        (-1, 5, "format: min must be a whole number"),
        (True, 5, "format: min must be a whole number"),
        (1.5, 5, "format: min must be a whole number"),
        (3, 2, "format: min must not exceed max"),
    ],
)
def test_impossible_counts_of_a_repeat(minimum: object, maximum: object, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        validate(repeat(minimum, maximum))


@pytest.mark.parametrize("number", [10**300, -(10**300), 1e300])
def test_huge_numbers_elsewhere(number: float) -> None:
    with pytest.raises(InvalidRequest, match=r"format\.elements\[1\]\.token: it must be a number from -1000000000"):
        validate({"type": "sequence", "elements": [CONTENT, {"type": "token", "token": number}]})


def test_the_older_form_is_enforced(tmp_path: Path) -> None:
    grammar = Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(OLDER))
    grammar.validate()
    assert has_short_forced_texts(grammar)
    compiled, tokenizer = backend(tmp_path).compile(grammar), byte_tokenizer()

    def is_accepted(text: str) -> bool:
        matcher = compiled.matcher(frozenset({EOS}))
        return all(matcher.accept(token_id) for token_id in (*tokenizer.encode(text).ids, EOS))

    assert [is_accepted(text) for text in ("ab <a>true</a>", "<a>1</a>", "<a>true")] == [True, False, False]


@pytest.mark.parametrize(
    ("structures", "problem"),
    [
        (5, "must be a list"),
        ([5], "must be a list of objects"),
        ([{"begin": "a"}], r"structures\[0\]: schema is missing"),
    ],
)
def test_structures_of_another_form(structures: object, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"structures": structures})).validate()

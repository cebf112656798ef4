"""Escapes of regular expressions."""

import contextlib
import time

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import Grammar, GrammarKind
from tests.unit.engine.grammar_rig import schema_grammar

UNKNOWN = ["A", "Z", "z", "G", "h", "R", "N", "Q", "E", "b", "B", "p", "1", "k", "x4", "u12", "u{", "u{}", "c1"]
KNOWN = ["d", "D", "w", "W", "s", "S", "x41", "u0041", "u{1F600}", ".", "/", "-", "é"]
CONTROL = ["n", "r", "t", "f", "v", "a", "e", "0", "cJ", "x0a", "u000A", "u{a}", "u{22}"]


@pytest.mark.parametrize("escape", UNKNOWN)
def test_escapes_that_would_be_read_as_letters_are_refused(escape: str) -> None:
    for pattern, character in ((f"a\\{escape}", 2), (f"[\\{escape}]", 2)):
        problem = rf"has the escape \\{escape[0]} at character {character}, which is not supported"
        with pytest.raises(InvalidRequest, match=problem):
            Grammar(GrammarKind.REGEX, pattern).validate()
        with pytest.raises(InvalidRequest, match=problem):
            schema_grammar({"type": "string", "pattern": pattern}).validate()


@pytest.mark.parametrize("unit", ["{", "{1", "{1,", "{ ", "[", "(", "\\"])
@pytest.mark.parametrize("kind", [GrammarKind.EBNF, GrammarKind.REGEX])
def test_checks_take_linear_time(unit: str, kind: GrammarKind) -> None:
    text = unit * ((8_000 if kind is GrammarKind.REGEX else 120_000) // len(unit))
    started_s = time.thread_time()
    with contextlib.suppress(InvalidRequest):
        Grammar(kind, text).validate()
    with contextlib.suppress(ValueError):
        Grammar(kind, text).check()
    assert time.thread_time() - started_s < 1


def test_counts_with_many_digits_are_refused_wherever_they_are() -> None:
    for text in ("a{1234567890}", "{ {a{1,1234567890}", "a{ 1234567890 ,}"):
        for kind in (GrammarKind.EBNF, GrammarKind.REGEX):
            with pytest.raises(
                InvalidRequest, match=f"the count at character {text.rindex('{') + 1} has over 9 digits"
            ):
                Grammar(kind, text).validate()


def test_a_backslash_at_the_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at character 2, which is not supported"):
        Grammar(GrammarKind.REGEX, "a\\").validate()


@pytest.mark.parametrize("escape", [*KNOWN, *CONTROL])
def test_known_escapes_are_allowed(escape: str) -> None:
    for pattern in (f"a\\{escape}", f"[\\{escape}]"):
        Grammar(GrammarKind.REGEX, pattern).validate()
        schema = schema_grammar({"type": "string", "pattern": pattern})
        if escape in KNOWN:
            schema.validate()
            continue
        with pytest.raises(InvalidRequest, match="which JSON strings must escape"):
            schema.validate()

"""Masks behind drafted tokens: those that the position would have there, and the position stays where it is."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from torch import Tensor

from baton.engine.grammar.bitmask import has_token
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.position import MAX_LOOK_AHEAD_S, Allowed, GrammarPosition
from tests.unit.engine.grammar.test_masks import CountingBackend, CountingGrammar, make_masks, make_request, wait_until
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, allowed, backend, drawn, schema_grammar

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "a_rather_long_name": {"enum": ["ab", "x"]}, "c": {"type": "string"}},
    "required": ["a", "a_rather_long_name", "c"],
    "additionalProperties": False,
}
GRAMMARS = (
    schema_grammar(SCHEMA),
    Grammar(GrammarKind.REGEX, "([a-c]|true){3,20}-[0-9][0-9]"),
    Grammar(GrammarKind.CHOICE, '["a \\"quoted\\" é", "b\\n", "ab", "abbbbbbbbbbb"]'),
)


def plain(found: Allowed) -> tuple[list[int], Sequence[int]]:
    return allowed(found.row), tuple(found.forced)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind.value)
def test_masks_behind_drafts_are_those_of_the_position_there(grammar: Grammar, tmp_path: Path) -> None:
    found = backend(tmp_path)
    compiled = found.compile(grammar)

    def position() -> GrammarPosition:
        matcher = compiled.matcher(frozenset({EOS}))
        return GrammarPosition(matcher, found.forced_token, -(-VOCAB_SIZE // 32), [EOS], min_tokens=6)

    for seed in range(6):
        rng = random.Random(seed)
        output = [token_id for token_id in drawn(compiled, seed, max_tokens=60) if token_id != EOS]
        try:
            expected = []
            walked = position()
            walked.advance([])
            for token_id in output:
                expected.append(plain(walked.allowed))
                if not has_token(walked.row, token_id):  # another division of a forced text
                    break
                walked.advance([token_id])
        except ValueError:
            continue
        looking = position()
        looking.advance([])
        for place in range(len(expected) - 1):
            assert plain(looking.allowed) == expected[place]
            drafts = output[place : place + rng.randint(1, 8)]
            wrong = rng.randrange(len(drafts))
            if rng.random() < 0.5:
                drafts[wrong] = rng.randrange(3, VOCAB_SIZE)
            ahead = looking.look_ahead(drafts, lambda: 0.0)
            num_right = next((n for n, each in enumerate(drafts) if each != output[place + n]), len(drafts))
            behind = expected[place + 1 : place + 1 + num_right]
            assert [plain(each) for each in ahead[: len(behind)]] == behind
            assert looking.num_tokens == place
            looking.advance(output[place : place + 1])


def test_looking_ahead_ends_at_a_forbidden_token_and_when_it_takes_long(tmp_path: Path) -> None:
    found = backend(tmp_path)
    compiled = found.compile(Grammar(GrammarKind.REGEX, "[a-c]{5,9}"))
    position = GrammarPosition(compiled.matcher(frozenset({EOS})), found.forced_token, -(-VOCAB_SIZE // 32), [EOS], 0)
    position.advance([])
    a, b = (3 + ord(each) for each in "ab")
    z = 3 + ord("z")
    assert [has_token(position.row, each) for each in (a, b, z)] == [True, True, False]
    assert len(position.look_ahead([a, b, z, a], lambda: 0.0)) == 2
    assert len(position.look_ahead([a, b, a, a], lambda: 1.0)) == 1
    assert position.look_ahead([z], lambda: 0.0) == []
    assert len(position.look_ahead([a] * 12, lambda: 0.0)) == 9


class BusyGrammar(CountingGrammar):
    """Takes some CPU time for each mask."""

    fill_s = 0.0
    masked: ClassVar[list[int]] = []  # tokens in front of each mask

    def matcher(self, stop_token_ids: frozenset[int]) -> "BusyGrammar":
        return BusyGrammar(self._gate, self._held_from)

    def fill(self, row: Tensor) -> None:
        started_s = time.thread_time()
        while time.thread_time() < started_s + BusyGrammar.fill_s:
            pass
        BusyGrammar.masked.append(self._num_tokens)
        super().fill(row)


class BusyBackend(CountingBackend):
    """Compiles grammars whose masks take some time."""

    def compile(self, grammar: Grammar) -> BusyGrammar:
        return BusyGrammar(self.gate, 99)


@pytest.mark.parametrize(("fill_s", "masked"), [(0.0, [1, 2, 3]), (1.2 * MAX_LOOK_AHEAD_S, [1])])
def test_drafts_do_not_multiply_the_time_of_a_mask_that_takes_long(
    fill_s: float, masked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would take as long as a slow one, and be late for the step."""
    monkeypatch.setattr(BusyGrammar, "fill_s", fill_s)
    monkeypatch.setattr(BusyGrammar, "masked", [])
    masks, request = make_masks(BusyBackend()), make_request("a", 99, [1])
    masks.enter(request)
    wait_until(lambda: masks.may_sample(request))
    BusyGrammar.masked.clear()  # of the grammar's first mask
    rows, drafted = [request] * 3, {1: [2], 2: [2, 3]}
    masks.begin(rows, drafted)
    wait_until(lambda: masks._threads.is_idle)
    found = masks.collect(rows, drafted)
    assert found is not None
    assert BusyGrammar.masked == masked
    assert found.late_rows == set(range(len(masked), 3))

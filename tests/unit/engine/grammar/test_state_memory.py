"""Memory of matchers: the requests with the largest ones fail, and an ended request keeps none."""

import gc
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar import masks as masks_module
from baton.engine.grammar import state_memory
from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.mask_fill import GrammarState
from baton.engine.grammar.masks import GrammarMasks
from baton.engine.grammar.position import GrammarPosition
from baton.engine.grammar.state_memory import StateMemory, allocated_bytes
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.unit.engine.grammar.test_masks import (
    TIMEOUT_S,
    CountingBackend,
    CountingGrammar,
    make_masks,
    make_request,
    wait_until,
)
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, NoTrial, backend, byte_tokenizer

AMBIGUOUS = Grammar(GrammarKind.EBNF, "root ::= a a a a a a a a\na ::= [a-z]*")
WORD = Grammar(GrammarKind.REGEX, "[a-z]*")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "CHECK_S", 0.01)


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def step(masks: GrammarMasks, requests: list[Request], token_id: int) -> None:
    """Append a token to each request that has a mask."""
    ready = [request for request in requests if masks.may_sample(request)]
    masks.begin(ready)
    collected = masks.collect(ready)
    if collected is not None:
        for row in set(range(len(ready))) - collected.late_rows:
            ready[row].token_ids.append(token_id)


def test_the_request_with_the_largest_matcher_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "MAX_STATE_BYTES", 16 * MIB)
    xgrammar, token_id = backend(tmp_path), byte_tokenizer().token_to_id("a")
    xgrammar.compile(WORD)
    masks = GrammarMasks(GrammarCompiler(lambda: xgrammar, NoTrial, VOCAB_SIZE), frozenset({EOS}))
    requests = [
        Request(RequestId(name), [9, 9], 2, SamplingParams(max_tokens=5000, grammar=grammar))
        for name, grammar in (("ambiguous", AMBIGUOUS), ("word", WORD))
    ]
    for request in requests:
        masks.enter(request)
    ambiguous, word = requests
    wait_until(lambda: step(masks, requests, token_id) is None and word.num_output_tokens > 20)
    wait_until(lambda: step(masks, [ambiguous], token_id) is None and masks.has_failures)
    [(failed, error)] = masks.take_failures()
    assert failed is ambiguous
    assert isinstance(error, InvalidRequest)
    assert str(error) == "grammar: matching it takes too much memory; make it simpler or less ambiguous"
    assert 300 < ambiguous.num_output_tokens < 3000
    end = word.num_output_tokens + 50  # few, as even a usual matcher may count as large while the other one is freed
    wait_until(lambda: step(masks, requests, token_id) is None and (word.num_output_tokens > end or masks.has_failures))
    assert not masks.take_failures()


def state_with(matched_bytes: float, num_tokens: int) -> GrammarState:
    """A state with a matcher of an estimated size."""
    request = make_request("a", 99)
    position = GrammarPosition(CountingGrammar(CountingBackend().gate, 99), lambda _: None, 2, [], 0)
    position.match_s, position.num_tokens = matched_bytes / state_memory.BYTES_PER_S, num_tokens
    return GrammarState(ref(request), WORD, "", "", position=position)


@pytest.mark.parametrize(
    ("state_mib", "num_tokens", "allocated_mib"),
    [
        (100, 1000, 2000),  # the estimate is small
        (400, 1000, 1000),  # the process has not grown
        (400, 20_000, 2000),  # long outputs of usual grammars
    ],
)
def test_nothing_fails_within_the_bound(
    monkeypatch: pytest.MonkeyPatch, state_mib: int, num_tokens: int, allocated_mib: int
) -> None:
    monkeypatch.setattr(state_memory, "allocated_bytes", lambda: allocated_mib * MIB)
    states = [state_with(state_mib * MIB, num_tokens) for _ in range(8)]
    assert StateMemory().check(states) == []


@pytest.mark.parametrize(("allocated", "base"), [(3000.0 * MIB, 1500.0 * MIB), (math.inf, math.inf)])
def test_the_largest_fail_until_a_share_is_free(monkeypatch: pytest.MonkeyPatch, allocated: float, base: float) -> None:
    small = [state_with(100 * MIB, 1000) for _ in range(12)]
    large, larger, usual = state_with(200 * MIB, 1000), state_with(210 * MIB, 1000), state_with(300 * MIB, 200_000)
    without_matcher = GrammarState(ref(make_request("a", 99)), WORD, "", "")
    memory = StateMemory()
    monkeypatch.setattr(state_memory, "allocated_bytes", lambda: base)
    memory.note_empty()
    monkeypatch.setattr(state_memory, "allocated_bytes", lambda: allocated)
    assert memory.check([*small, large, without_matcher, usual, larger]) == [larger, large]


def test_freed_memory_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "RETURN_DELAY_S", 0.0)
    memory, states, returned = StateMemory(), [state_with(100 * MIB, 1000) for _ in range(8)], threading.Event()
    monkeypatch.setattr(state_memory.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=lambda _: returned.set()))
    for num_states in (8, 8, 7, 8, 7):
        memory.check(states[:num_states])
    assert not returned.is_set()
    memory.check([])
    assert returned.wait(TIMEOUT_S)


def test_allocations_are_counted() -> None:
    before = allocated_bytes()
    held = [bytes(MIB) for _ in range(50)]
    assert 45 * MIB < allocated_bytes() - before < 100 * MIB
    del held


class WaitingBackend(CountingBackend):
    """Compiles once the gate is open."""

    def compile(self, grammar: Grammar) -> CountingGrammar:
        assert self.gate.wait(TIMEOUT_S)
        return super().compile(grammar)


@pytest.mark.usefixtures("no_gc")
def test_an_ended_request_keeps_no_matcher() -> None:
    """The cache keeps the future that it waited for."""
    waiting = WaitingBackend()
    masks, requests = make_masks(waiting), [make_request("a", 99)]
    masks.enter(requests[0])
    waiting.gate.set()
    wait_until(lambda: masks.may_sample(requests[0]))
    position = masks._states[requests[0]].position
    assert position is not None
    matcher = ref(position)
    del position
    requests.clear()
    wait_until(lambda: matcher() is None)


@pytest.mark.usefixtures("no_gc")
def test_a_failed_request_keeps_no_matcher() -> None:
    masks, request = make_masks(CountingBackend()), make_request("wrong", 99, [1, 3])
    masks.enter(request)
    wait_until(lambda: masks.may_sample(request))
    position = masks._states[request].position
    assert position is not None
    matcher = ref(position)
    del position
    masks.begin([request])
    wait_until(lambda: masks.has_failures and matcher() is None)

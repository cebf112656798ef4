"""Masks that are late, slow or impossible: their requests wait or fail alone."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from baton.engine.errors import InvalidRequest
from baton.engine.grammar import mask_fill as mask_fill_module
from baton.engine.grammar import masks as masks_module
from baton.engine.grammar import threads as threads_module
from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.masks import GrammarMasks
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.unit.engine.grammar_rig import NoTrial

EOS = 0
VOCAB_SIZE = 64
TIMEOUT_S = 30


class CountingGrammar:
    """Allows token `n + 1` after `n` tokens, or the last of all. Held back from the token on at which it is gated."""

    num_bytes = 10

    def __init__(self, gate: threading.Event, held_from: int) -> None:
        self._gate = gate
        self._held_from = held_from
        self._num_tokens = 0

    def matcher(self, stop_token_ids: frozenset[int]) -> "CountingGrammar":
        return CountingGrammar(self._gate, self._held_from)

    def accept(self, token_id: int) -> bool:
        is_right = token_id == self._num_tokens + 1
        self._num_tokens += is_right
        return is_right

    def rollback(self, num_tokens: int) -> None:
        self._num_tokens -= num_tokens

    def forced_text(self) -> str:
        return ""

    def fill(self, row: Tensor) -> None:
        if self._num_tokens >= self._held_from:
            assert self._gate.wait(TIMEOUT_S)
        row.zero_()
        row[(self._num_tokens + 1) // 32] = 1 << (self._num_tokens + 1) % 32
        row[-1] |= -(1 << 31)


class CountingBackend:
    """Compiles grammars whose source is the number of tokens from which they are held."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def compile(self, grammar: Grammar) -> CountingGrammar:
        return CountingGrammar(self.gate, int(grammar.source))

    def forced_token(self, text: str) -> None:
        return None

    def apply(self, logits: Tensor, masks: Tensor, rows: Sequence[int]) -> None:
        for row in rows:
            bits = (masks[row][:, None] >> torch.arange(32, dtype=torch.int32)) & 1
            logits[row, ~bits.flatten().bool()] = -torch.inf


@pytest.fixture
def backend() -> Iterator[CountingBackend]:
    counting = CountingBackend()
    yield counting
    counting.gate.set()


def make_request(
    name: str,
    held_from: int | str | None,
    output: Sequence[int] = (),
    kind: GrammarKind = GrammarKind.REGEX,
    cache_salt: str = "",
    tenant: str = "",
) -> Request:
    grammar = None if held_from is None else Grammar(kind, f"{held_from}")
    params = SamplingParams(max_tokens=50, grammar=grammar)
    return Request(RequestId(name), [9, 9, *output], 2, params, cache_salt=cache_salt, tenant=tenant)


def make_masks(backend: CountingBackend) -> GrammarMasks:
    return GrammarMasks(GrammarCompiler(lambda: backend, NoTrial, VOCAB_SIZE), frozenset({EOS}))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def step(masks: GrammarMasks, requests: Sequence[Request]) -> list[int | None]:
    """Samples the best allowed token of each request; None for those whose mask is late."""
    masks.begin(requests)
    collected = masks.collect(requests)
    logits = torch.zeros(len(requests), VOCAB_SIZE)
    if collected is None:
        return logits.argmax(-1).tolist()
    collected.apply(logits)
    return [None if row in collected.late_rows else token for row, token in enumerate(logits.argmax(-1).tolist())]


def sample(masks: GrammarMasks, request: Request) -> int:
    """Samples a token alone, in as many steps as it takes on a busy machine."""
    sampled: list[int | None] = []
    wait_until(lambda: masks.may_sample(request) and sampled.extend(step(masks, [request])) is None and any(sampled))
    return next(token_id for token_id in sampled if token_id is not None)


def test_a_late_mask_costs_its_own_request_a_step_and_the_others_one_wait(
    backend: CountingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks_module, "WAIT_S", 0.3)
    monkeypatch.setattr(mask_fill_module, "BLOCKED_S", 0.1)
    masks, woken = make_masks(backend), threading.Event()
    masks.listen(woken.set)
    held, quick, plain = make_request("held", 1), make_request("quick", 99), make_request("plain", None)
    for request in (held, quick, plain):
        masks.enter(request)
    wait_until(lambda: masks.may_sample(held) and masks.may_sample(quick))
    assert step(masks, [held, plain, quick]) == [1, 0, 1]
    held.token_ids.append(1)
    quick.token_ids.append(1)
    woken.clear()
    assert step(masks, [quick, held, plain]) == [2, None, 0]
    assert masks.counters.num_late_masks == 1
    quick.token_ids.append(2)
    for token_id in range(3, 9):  # no step waits for it again
        assert masks.may_sample(quick)
        assert not masks.may_sample(held)
        assert step(masks, [quick, plain]) == [token_id, 0]
        quick.token_ids.append(token_id)
    assert masks.counters.num_late_masks == 1
    backend.gate.set()
    assert woken.wait(TIMEOUT_S)
    assert masks.may_sample(held)
    assert step(masks, [held]) == [2]
    held.token_ids.append(2)
    wait_until(lambda: masks.may_sample(held))  # filled between steps from now on
    assert step(masks, [held]) == [3]


def test_requests_that_wait_for_a_mask_of_their_tenant_are_woken_at_its_end(backend: CountingBackend) -> None:
    masks, woken, ebnf = make_masks(backend), threading.Event(), GrammarKind.EBNF
    held, waits = make_request("held", 1, [1], ebnf), make_request("waits", 99, kind=ebnf)
    for request in (held, waits):
        masks.enter(request)
    wait_until(lambda: masks.may_sample(held) and masks.may_sample(waits))
    masks.begin([held])
    wait_until(lambda: bool(masks._threads._running))
    assert not masks.may_sample(waits)
    masks.listen(woken.set)
    backend.gate.set()
    assert woken.wait(TIMEOUT_S)
    assert masks.may_sample(waits)


def test_stuck_threads_stop_the_masks_of_others_but_not_the_steps(backend: CountingBackend) -> None:
    masks = make_masks(backend)
    held = [make_request(f"{i}", 1, [1]) for i in range(20)]
    quick = make_request("quick", 99)
    for request in (*held, quick):
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, (*held, quick))))
    while masks.may_sample(quick):
        step(masks, [request for request in held if masks.may_sample(request)])
    started_at_s = time.monotonic()
    assert not any(map(masks.may_sample, held))
    assert time.monotonic() - started_at_s < TIMEOUT_S / 10
    backend.gate.set()
    wait_until(lambda: all(map(masks.may_sample, (*held, quick))))
    assert step(masks, [*held, quick]) == [2] * 20 + [1]


def test_a_mask_that_takes_seconds_fails_its_request(backend: CountingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "MAX_FILL_S", -1.0)
    masks, request = make_masks(backend), make_request("a", 99)
    masks.enter(request)
    wait_until(lambda: masks.may_sample(request))
    assert step(masks, [request]) == [None]
    [(failed, error)] = masks.take_failures()
    assert failed is request
    assert "s to match one token" in str(error)
    assert masks.take_failures() == []
    assert not masks.may_sample(request)


def test_an_output_that_does_not_match_fails_its_request(backend: CountingBackend) -> None:
    masks, moved, wrong = make_masks(backend), make_request("moved", 99, [1, 2, 3]), make_request("wrong", 99, [1, 3])
    for request in (moved, wrong):
        masks.enter(request)
    wait_until(lambda: masks.may_sample(moved) and masks.may_sample(wrong))
    assert step(masks, [moved, wrong]) == [4, None]
    [(failed, error)] = masks.take_failures()
    assert failed is wrong
    assert str(error) == "grammar: token 2 of the output does not match it"


def test_ended_requests_leave_nothing_behind(backend: CountingBackend) -> None:
    masks, request = make_masks(backend), make_request("a", 1, [1])
    masks.enter(request)
    while not masks.may_sample(request):
        time.sleep(0.001)
    assert step(masks, [request]) == [None]
    del request
    backend.gate.set()
    wait_until(lambda: not masks._states)
    assert masks.take_failures() == []


class FaultyGrammar(CountingGrammar):
    """Raises what a library may raise, from the first token on."""

    def matcher(self, stop_token_ids: frozenset[int]) -> "FaultyGrammar":
        return FaultyGrammar(self._gate, self._held_from)

    def fill(self, row: Tensor) -> None:
        if self._num_tokens:
            raise RuntimeError("the matcher has terminated")
        super().fill(row)


class FaultyBackend(CountingBackend):
    """Compiles faulty grammars from the source 0."""

    def compile(self, grammar: Grammar) -> CountingGrammar:
        return FaultyGrammar(self.gate, 99) if grammar.source == "0" else super().compile(grammar)


def test_a_fault_of_the_library_fails_its_request_and_ends_no_thread() -> None:
    masks = make_masks(FaultyBackend())
    for number in range(2 * threads_module.MAX_THREADS):
        faulty = make_request(f"{number}", 0, [1])
        masks.enter(faulty)
        wait_until(partial(masks.may_sample, faulty))
        assert step(masks, [faulty]) == [None]
        wait_until(lambda: masks.has_failures)
        [(failed, error)] = masks.take_failures()
        assert failed is faulty
        assert not isinstance(error, InvalidRequest)
        assert str(error) == "a mask of the grammar could not be filled"
    quick = make_request("quick", 99)
    masks.enter(quick)
    assert sample(masks, quick) == 1


def test_an_output_that_has_ended_is_refused(backend: CountingBackend) -> None:
    with pytest.raises(InvalidRequest, match="grammar: the output has already ended"):
        make_masks(backend).enter(make_request("ended", 99, [1, 2, EOS]))


class SteadyGrammar(CountingGrammar):
    """Sleeps for each mask but the first."""

    def matcher(self, stop_token_ids: frozenset[int]) -> "SteadyGrammar":
        return SteadyGrammar(self._gate, self._held_from)

    def fill(self, row: Tensor) -> None:
        if self._num_tokens:
            time.sleep(0.03)
        super().fill(row)


class SteadyBackend(CountingBackend):
    """Compiles grammars whose masks take a while, but none of them long."""

    def compile(self, grammar: Grammar) -> CountingGrammar:
        return SteadyGrammar(self.gate, 99)


def test_a_step_with_many_masks_goes_on_at_its_deadline_and_no_request_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_fill_module, "BLOCKED_S", 10.0)  # however busy this machine is
    masks = make_masks(SteadyBackend())
    requests = [make_request(f"{number}", 99, [1]) for number in range(8 * threads_module.MAX_THREADS)]
    for request in requests:
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, requests)))
    for request, token_id in zip(requests, step(masks, requests), strict=True):
        if token_id is not None:
            request.token_ids.append(token_id)
    assert masks.counters.num_late_masks > 0  # all masks together take longer than the deadline
    deadline_s = time.monotonic() + TIMEOUT_S
    while min(request.num_output_tokens for request in requests) < 3:
        assert time.monotonic() < deadline_s
        for request, token_id in zip(requests, step(masks, requests), strict=True):
            if token_id is not None:
                assert token_id == request.num_output_tokens + 1
                request.token_ids.append(token_id)
        lengths = [request.num_output_tokens for request in requests]
        assert max(lengths) - min(lengths) <= 2  # in turn, although each is ready for its next mask at once


def test_a_request_does_not_fail_because_the_engine_takes_no_steps(
    backend: CountingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks_module, "CHECK_S", 0.01)
    masks = make_masks(backend)
    held = [make_request(f"held {number}", 1, [1]) for number in range(masks._threads.num_threads)]
    waits = make_request("waits", 99, [1])
    for request in (*held, waits):
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, (*held, waits))))
    for request in held:
        masks.begin([request])
    wait_until(lambda: len(masks._threads._running) == len(held))
    assert step(masks, [waits]) == [None]  # queued behind the others
    backend.gate.set()
    wait_until(lambda: masks._threads.is_idle)
    monkeypatch.setattr(masks_module, "MAX_WAIT_S", 0.05)
    state = masks._states[waits]
    wait_until(lambda: state.has_waited(0.5) or masks.has_failures)
    assert masks.take_failures() == []
    assert masks.may_sample(waits)
    assert state.waiting_since_s is None  # the wait for the engine is over, and so does not count in its next step
    assert sample(masks, waits) == 2

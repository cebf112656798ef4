"""Masks that take long: they fail their requests in time, or not at all if it is many tokens that take it."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from torch import Tensor

from baton.engine.errors import InvalidRequest, QueueFull
from baton.engine.grammar import masks as masks_module
from baton.engine.grammar import threads as threads_module
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.mask_fill import Phase
from baton.engine.grammar.masks import GrammarMasks
from baton.engine.request import Request
from tests.unit.engine.grammar.test_masks import (
    TIMEOUT_S,
    CountingBackend,
    CountingGrammar,
    make_masks,
    make_request,
    sample,
    step,
    wait_until,
)


class BusyGrammar(CountingGrammar):
    """Computes in each mask but the first, for as long as its gate is closed."""

    def matcher(self, stop_token_ids: frozenset[int]) -> "BusyGrammar":
        return BusyGrammar(self._gate, self._held_from)

    def fill(self, row: Tensor) -> None:
        started_s = time.thread_time()
        while self._num_tokens and time.thread_time() < started_s + 0.3:
            continue
        super().fill(row)


class BusyBackend(CountingBackend):
    """Compiles busy grammars from the number 1, which may have leading zeros."""

    def compile(self, grammar: Grammar) -> CountingGrammar:
        return BusyGrammar(self.gate, 1) if int(grammar.source) == 1 else super().compile(grammar)


@pytest.fixture
def busy_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyBackend]:
    monkeypatch.setattr(threads_module, "MAX_THREADS", 2)
    monkeypatch.setattr(threads_module, "MAX_FILL_S", 0.1)
    monkeypatch.setattr(masks_module, "CHECK_S", 0.02)
    busy = BusyBackend()
    yield busy
    busy.gate.set()


def fail(masks: GrammarMasks, requests: list[Request], is_awaited: bool) -> dict[Request, str]:
    """Let requests fail by masks that are still being filled; returns their errors."""
    for request in requests:
        masks.enter(request)
    return fail_entered(masks, requests, is_awaited)


def fail_entered(masks: GrammarMasks, requests: list[Request], is_awaited: bool) -> dict[Request, str]:
    wait_until(lambda: all(map(masks.may_sample, requests)))
    for request in requests:  # if not awaited, as if their first masks had been slow
        masks._states[request].is_slow = not is_awaited
    failed: dict[Request, str] = {}

    def have_failed() -> bool:
        assert not any(step(masks, [request for request in requests if masks.may_sample(request)]))
        for request, error in masks.take_failures():
            assert isinstance(error, InvalidRequest)
            failed[request] = str(error)
        return failed.keys() >= set(requests)

    wait_until(have_failed)
    return failed


def test_masks_that_never_end_fail_their_requests_in_time_and_hold_up_no_later_ones(busy_backend: BusyBackend) -> None:
    masks, woken = make_masks(busy_backend), threading.Event()
    masks.listen(woken.set)
    quick = make_request("quick", 99, tenant="another")
    masks.enter(quick)
    for is_awaited in (True, False):
        zeros = "" if is_awaited else "00"
        errors = fail(masks, [make_request(f"{is_awaited} {i}", f"{zeros}{i}1", [1]) for i in ("", "0")], is_awaited)
        assert all("s to match one token; make it less ambiguous" in error for error in errors.values())
        assert woken.wait(TIMEOUT_S)
        woken.clear()
        assert sample(masks, quick) == quick.num_output_tokens + 1
        quick.token_ids.append(quick.num_output_tokens + 1)
    with pytest.raises(QueueFull, match="try again later"):
        masks.enter(make_request("one more", 99))
    with pytest.raises(QueueFull, match="try again later"):
        masks.enter(make_request("with another salt", 99, cache_salt="other"))
    masks.enter(make_request("of another tenant", 99, tenant="another"))
    assert sample(masks, quick) == 3
    busy_backend.gate.set()
    wait_until(lambda: masks._threads.is_idle)
    later = make_request("later", 99)
    masks.enter(later)
    assert sample(masks, later) == 1


def test_a_grammar_whose_mask_never_ends_fails_all_its_requests(busy_backend: BusyBackend) -> None:
    masks = make_masks(busy_backend)
    others = [make_request(f"{salt} {i}", 1, cache_salt=salt) for i in range(3) for salt in ("a", "b")]
    for request in others:
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, others)))
    fail(masks, [make_request("stuck", 1, [1], cache_salt="a")], is_awaited=True)
    later = make_request("later", 1, cache_salt="a")
    masks.enter(later)
    assert not any(map(masks.may_sample, [*others[::2], later]))
    assert all(map(masks.may_sample, others[1::2]))
    assert len(masks._threads._long) == 1


def test_a_thread_is_replaced_as_soon_as_the_bound_allows_it(
    busy_backend: BusyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "MAX_REPLACED", 1)
    masks = make_masks(busy_backend)
    first, second = make_request("first", "1", [1]), make_request("second", "01", [1], tenant="another")
    masks.enter(first)
    wait_until(lambda: masks.may_sample(first))
    first_gate, busy_backend.gate = busy_backend.gate, threading.Event()
    masks.enter(second)
    fail_entered(masks, [first, second], is_awaited=True)
    assert sorted(fill.is_replaced for fill in masks._threads._long) == [False, True]
    first_gate.set()
    wait_until(lambda: [fill.is_replaced for fill in masks._threads._long] == [True])


@pytest.mark.slow
def test_a_tenant_does_not_take_all_replacements(busy_backend: BusyBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "MAX_THREADS", 8)
    monkeypatch.setattr(threads_module.os, "sched_getaffinity", lambda _: range(16))
    monkeypatch.setattr(threads_module, "MAX_LONG", 3)
    masks = make_masks(busy_backend)
    requests = [make_request(f"{i}", f"{i * '0'}1", [1]) for i in range(32)]
    for request in requests:
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, requests)))
    masks.begin(requests)  # on all threads

    def count_replaced() -> int | None:
        with masks._changed:
            dropped = [fill.is_replaced for fill in masks._threads._long if fill.phase is Phase.DROPPED]
        return sum(dropped) if len(dropped) == 8 else None

    wait_until(lambda: count_replaced() is not None)
    assert count_replaced() == 3


def test_slow_masks_of_a_tenant_take_turns_with_those_of_another(
    busy_backend: BusyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "MAX_FILL_S", 10.0)
    busy_backend.gate.set()
    masks = make_masks(busy_backend)
    many = [make_request(f"{number}", f"{number * '0'}1", [1]) for number in range(20)]
    other = make_request("other", 1, [1], tenant="another")
    for request in (*many, other):
        masks.enter(request)
    states = [masks._states[request] for request in (*many, other)]
    wait_until(lambda: all(state.position for state in states))
    for state in states:
        state.is_slow = True
    assert not any(map(masks.may_sample, [*many, other]))
    wait_until(lambda: masks.may_sample(other))
    assert sum(map(masks.may_sample, many)) <= 4


def test_a_request_that_waits_for_a_thread_fails_in_time(
    busy_backend: BusyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "MAX_REPLACED", 1)
    masks, woken = make_masks(busy_backend), threading.Event()
    quick = make_request("quick", 99, tenant="another")
    masks.enter(quick)
    wait_until(lambda: masks.may_sample(quick))
    fail(masks, [make_request(zeros, f"{zeros}1", [1]) for zeros in ("", "0", "00")], is_awaited=True)
    masks.listen(woken.set)
    monkeypatch.setattr(masks_module, "MAX_WAIT_S", 0.5)
    assert not masks.may_sample(quick)
    assert woken.wait(TIMEOUT_S)  # although nothing else happens
    [(failed, error)] = masks.take_failures()
    assert failed is quick
    assert isinstance(error, QueueFull)
    with pytest.raises(QueueFull):
        masks.enter(make_request("one more", 99, tenant="a third"))


def test_expensive_grammars_of_a_tenant_wait_for_its_masks_that_never_end(
    busy_backend: BusyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks, ebnf = make_masks(busy_backend), GrammarKind.EBNF
    waits, cheap = make_request("waits", 99, kind=ebnf), make_request("cheap", 99)
    other = make_request("other", 99, kind=ebnf, tenant="another")
    for request in (waits, cheap, other):
        masks.enter(request)
    wait_until(lambda: masks.may_sample(waits) and masks.may_sample(cheap) and masks.may_sample(other))
    fail(masks, [make_request("stuck", 1, [1], kind=ebnf)], is_awaited=True)
    assert sample(masks, waits) == 1
    waits.token_ids.append(1)
    fail(masks, [make_request("stuck too", "01", [1], kind=ebnf)], is_awaited=True)
    monkeypatch.setattr(masks_module, "MAX_WAIT_S", 0.5)
    assert not masks.may_sample(waits)
    assert (sample(masks, cheap), sample(masks, other)) == (1, 1)
    with pytest.raises(QueueFull):
        masks.enter(make_request("one more", 99, kind=ebnf))
    masks.enter(make_request("cheap as well", 99))
    wait_until(lambda: masks.has_failures)
    [(failed, error)] = masks.take_failures()
    assert failed is waits
    assert isinstance(error, QueueFull)


def test_expensive_grammars_of_a_tenant_occupy_one_thread_in_a_step(busy_backend: BusyBackend) -> None:
    masks = make_masks(busy_backend)
    requests = [make_request(f"{i}", f"{i * '0'}1", [1], kind=GrammarKind.EBNF) for i in range(5)]
    for request in requests:
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, requests)))
    counts: list[int] = []

    def are_blocked() -> bool:
        assert not any(step(masks, [request for request in requests if masks.may_sample(request)]))
        counts.append(len(masks._threads._long))
        return not any(map(masks.may_sample, requests))

    wait_until(are_blocked)
    assert counts[-1] == 2
    assert all(later - earlier <= 1 for earlier, later in pairwise([0, *counts]))


def test_a_fill_ends_with_the_next_token_once_its_request_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "MAX_WAIT_S", 4 * EffortfulGrammar.TOKEN_S)
    monkeypatch.setattr(masks_module, "CHECK_S", 0.01)
    monkeypatch.setattr(masks_module, "MAX_AWAITED_TOKENS", 20)
    masks, moved = make_masks(EffortfulBackend()), make_request("moved", 99, range(1, 41))
    masks.enter(moved)
    wait_until(lambda: not masks.may_sample(moved) and masks.has_failures)
    [(_, error)] = masks.take_failures()
    assert isinstance(error, QueueFull)
    wait_until(lambda: masks._threads.is_idle)
    assert masks.counters.mask_s < 30 * EffortfulGrammar.TOKEN_S


def test_a_mask_that_never_ends_is_replaced_after_its_request_has_ended(busy_backend: BusyBackend) -> None:
    masks = make_masks(busy_backend)
    requests = [make_request(f"{number}", 1, [1]) for number in range(2)]
    for request in requests:
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, requests)))
    assert step(masks, requests) == [None, None]
    requests.clear()
    del request
    quick = make_request("quick", 99)
    masks.enter(quick)
    assert sample(masks, quick) == 1
    assert masks.take_failures() == []


class EffortfulGrammar(CountingGrammar):
    """Takes some CPU time for each token."""

    TOKEN_S = 0.02

    def matcher(self, stop_token_ids: frozenset[int]) -> CountingGrammar:
        return EffortfulGrammar(self._gate, self._held_from)

    def accept(self, token_id: int) -> bool:
        end_s = time.thread_time() + self.TOKEN_S
        while time.thread_time() < end_s:
            pass
        return super().accept(token_id)


class EffortfulBackend(CountingBackend):
    def compile(self, grammar: Grammar) -> CountingGrammar:
        return EffortfulGrammar(self.gate, int(grammar.source))


@pytest.mark.slow
def test_the_time_of_a_mask_does_not_count_the_tokens_before_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "MAX_FILL_S", 10 * EffortfulGrammar.TOKEN_S)
    monkeypatch.setattr(masks_module, "CHECK_S", 0.01)
    monkeypatch.setattr(masks_module, "MAX_AWAITED_TOKENS", 20)
    masks, moved = make_masks(EffortfulBackend()), make_request("moved", 99, range(1, 41))
    masks.enter(moved)
    wait_until(lambda: masks.may_sample(moved))  # matched between the steps
    started_at_s = time.monotonic()
    assert step(masks, [moved]) == [41]
    assert time.monotonic() - started_at_s < 40 * EffortfulGrammar.TOKEN_S
    assert masks.take_failures() == []
    assert masks.counters.num_late_masks == 0
    assert masks.counters.mask_s > 40 * EffortfulGrammar.TOKEN_S

"""Masks that take long: they fail their requests in time, or not at all if it is many tokens that take it."""

import threading
import time
from collections.abc import Iterator

import pytest
from torch import Tensor

from baton.engine.errors import InvalidRequest, QueueFull
from baton.engine.grammar import masks as masks_module
from baton.engine.grammar.grammar import Grammar
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
    """Compiles busy grammars from the source 1."""

    def compile(self, grammar: Grammar) -> CountingGrammar:
        return BusyGrammar(self.gate, 1) if grammar.source == "1" else super().compile(grammar)


@pytest.fixture
def busy_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyBackend]:
    monkeypatch.setattr(masks_module, "MAX_THREADS", 2)
    monkeypatch.setattr(masks_module, "MAX_FILL_S", 0.1)
    monkeypatch.setattr(masks_module, "CHECK_S", 0.02)
    busy = BusyBackend()
    yield busy
    busy.gate.set()


def fail_two(masks: GrammarMasks, is_awaited: bool) -> None:
    """Let two requests fail by masks that are still being filled."""
    requests = [make_request(f"busy {number}", 1, [1]) for number in range(2)]
    for request in requests:
        masks.enter(request)
    wait_until(lambda: all(map(masks.may_sample, requests)))
    for request in requests:  # if not awaited, as if their first masks had been slow
        masks._states[request].is_slow = not is_awaited
    failed: list[Request] = []

    def have_failed() -> bool:
        assert not any(step(masks, [request for request in requests if masks.may_sample(request)]))
        for request, error in masks.take_failures():
            assert isinstance(error, InvalidRequest)
            assert "s to match one token; make it less ambiguous" in str(error)
            failed.append(request)
        return len(failed) == 2

    wait_until(have_failed)
    assert set(failed) == set(requests)


def test_masks_that_never_end_fail_their_requests_in_time_and_hold_up_no_later_ones(busy_backend: BusyBackend) -> None:
    masks, woken = make_masks(busy_backend), threading.Event()
    masks.listen(woken.set)
    quick = make_request("quick", 99)
    for is_awaited in (True, False):
        fail_two(masks, is_awaited)
        assert woken.wait(TIMEOUT_S)
        woken.clear()
        if is_awaited:
            masks.enter(quick)
        assert sample(masks, quick) == quick.num_output_tokens + 1
        quick.token_ids.append(quick.num_output_tokens + 1)
    with pytest.raises(QueueFull, match="try again later"):
        masks.enter(make_request("one more", 99))
    assert sample(masks, quick) == 3
    busy_backend.gate.set()
    wait_until(lambda: masks._threads._num_alive <= 2 and masks._slow_threads._num_alive <= 2)
    later = make_request("later", 99)
    masks.enter(later)
    assert sample(masks, later) == 1


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


def test_the_time_of_a_mask_does_not_count_the_tokens_before_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "MAX_FILL_S", 10 * EffortfulGrammar.TOKEN_S)
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

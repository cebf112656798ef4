"""Bounds on the threads that compile grammars, and on the memory of these, so that no tenant takes all of them."""

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from baton.engine.errors import QueueFull
from baton.engine.grammar import compiler as compiler_module
from baton.engine.grammar.compiler import GrammarCompiler, ReadyGrammar
from baton.engine.grammar.grammar import Grammar
from tests.unit.engine.grammar.test_compiler import (
    EXPENSIVE,
    TIMEOUT_S,
    VOCAB_SIZE,
    AllowsToken,
    HeldBackend,
    grammar,
)
from tests.unit.engine.grammar_rig import NoTrial


@pytest.fixture
def held() -> Iterator[HeldBackend]:
    backend = HeldBackend()
    yield backend
    backend.may_compile.set()


class PartlyHeldBackend(HeldBackend):
    """Holds even numbers until it is released, and compiles odd ones."""

    def compile(self, grammar: Grammar) -> AllowsToken:
        return super().compile(grammar) if int(grammar.source) % 2 == 0 else AllowsToken(grammar.source)


@pytest.fixture
def partly_held() -> Iterator[PartlyHeldBackend]:
    backend = PartlyHeldBackend()
    yield backend
    backend.may_compile.set()


@pytest.mark.slow
def test_threads_whose_compilation_does_not_end_are_replaced_up_to_a_bound(
    partly_held: PartlyHeldBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_REPLACED", 3)
    monkeypatch.setattr(compiler_module, "WAIT_TIMEOUT_S", 1.0)
    compiler = GrammarCompiler(lambda: partly_held, NoTrial, VOCAB_SIZE, timeout_s=0.2)
    for number in range(5):  # occupies two threads, and then those that replace them
        assert compiler.compile(grammar(f"{2 * number}"), tenant=f"{number}").exception(TIMEOUT_S)
        held_up = compiler.compile(grammar(f"{2 * number + 1}"), tenant="quick").exception(TIMEOUT_S)
        assert (held_up is None) == (number < 4)
    partly_held.may_compile.set()
    assert compiler.compile(grammar("11")).result(TIMEOUT_S)


def test_a_tenant_has_one_cheap_grammar_compiled_and_two_threads_replaced(
    partly_held: PartlyHeldBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "WAIT_TIMEOUT_S", 2.0)
    compiler = GrammarCompiler(lambda: partly_held, NoTrial, VOCAB_SIZE, timeout_s=0.2)
    endless = [compiler.compile(grammar(f"{2 * number}"), tenant="a") for number in range(6)]
    assert compiler.compile(grammar("1"), tenant="b").result(TIMEOUT_S)
    errors = [str(each.exception(TIMEOUT_S)) for each in endless]
    assert ["still being compiled" in error for error in errors] == [True] * 3 + [False] * 3
    assert isinstance(compiler.compile(grammar("3"), tenant="a").exception(TIMEOUT_S), QueueFull)  # no thread is its
    assert compiler.compile(grammar("3"), tenant="b").result(TIMEOUT_S)


def test_a_thread_is_replaced_once_another_ends(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = {"1": threading.Event(), "2": threading.Event()}

    class GatedBackend(HeldBackend):
        def compile(self, grammar: Grammar) -> AllowsToken:
            assert gates.get(grammar.source, held.may_compile).wait(TIMEOUT_S)
            return AllowsToken(grammar.source)

    held.may_compile.set()
    monkeypatch.setattr(compiler_module, "MAX_REPLACED_OF_TENANT", 1)
    compiler = GrammarCompiler(GatedBackend, NoTrial, VOCAB_SIZE, timeout_s=0.5)
    for source in ("1", "2"):
        assert compiler.compile(grammar(source), tenant="a").exception(TIMEOUT_S)
    waits = compiler.compile(grammar("3"), tenant="a")
    assert compiler.compile(grammar("4"), tenant="b").result(TIMEOUT_S)
    assert not waits.done()
    gates["1"].set()
    assert waits.result(TIMEOUT_S)
    gates["2"].set()


def test_the_timer_of_the_wait_does_not_stop_that_of_the_compile(held: HeldBackend) -> None:
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE, timeout_s=0.2)
    compiler.compile(grammar("1"), tenant="a")
    [(key, entry)] = compiler._entries.items()
    while entry not in compiler._compiling:
        time.sleep(0.001)
    compiler._fail(key, entry, QueueFull("no thread in time"))  # as its timer does at this moment
    deadline_s = time.monotonic() + TIMEOUT_S
    while not entry.is_replaced:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


class HeldTrial(NoTrial):
    """Tries until it is released."""

    def __init__(self, may_end: threading.Event) -> None:
        self._may_end = may_end

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        assert self._may_end.wait(TIMEOUT_S)


def test_expensive_grammars_of_a_tenant_hold_up_neither_cheap_ones_nor_those_of_another(held: HeldBackend) -> None:
    held.may_compile.set()
    may_end = [threading.Event(), threading.Event(), threading.Event()]
    trials, taken = map(HeldTrial, may_end), threading.Semaphore(0)

    def take() -> HeldTrial:
        trial = next(trials)
        taken.release()
        return trial

    compiler = GrammarCompiler(lambda: held, take, VOCAB_SIZE)
    waiting = [compiler.compile(grammar(EXPENSIVE + digit), tenant="a") for digit in "123"]
    for _ in range(2):  # the last one is for the other tenant
        assert taken.acquire(timeout=TIMEOUT_S)
    may_end[2].set()
    assert compiler.compile(grammar("1"), tenant="a").result(TIMEOUT_S)
    assert compiler.compile(grammar(EXPENSIVE + "4"), tenant="b").exception(TIMEOUT_S) is None
    assert not any(each.done() for each in waiting)
    may_end[0].set()
    may_end[1].set()
    assert [each.exception(TIMEOUT_S) for each in waiting] == [None] * 3


def test_compiled_grammars_have_a_largest_size(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_COMPILED_BYTES", 999)
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    assert "simplify it" in str(compiler.compile(grammar("1")).exception(TIMEOUT_S))


def test_grammars_in_use_are_bounded_without_the_cache(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_CACHE_BYTES", 0)
    monkeypatch.setattr(compiler_module, "MAX_USED_BYTES", 4000)
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)

    def compiled(source: str, tenant: str) -> ReadyGrammar | None:
        ready = compiler.compile(grammar(source), tenant=tenant)
        if (error := ready.exception(TIMEOUT_S)) is None:
            return ready.result()
        assert isinstance(error, QueueFull)
        return None

    def settle() -> None:  # the threads of timers that were stopped refer to grammars until they end
        gc.collect()
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(compiler._alive) > len(used):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    used = [compiled(source, "a") for source in ("1", "2", "3")]
    assert all(used)
    assert compiled("4", "a") is None  # over half of it
    used += [compiled(source, "b") for source in ("5", "6")]
    assert all(used)  # over all of it
    assert compiled("7", "b")
    settle()
    assert compiled("7", "c")
    settle()
    used += [compiled("8", "c")]
    assert all(used)
    assert compiled("9", "b") is None  # over a third
    assert compiled("9", "c")
    used.clear()
    settle()
    assert compiled("4", "a")


def test_compiles_count_as_large_grammars(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_CACHE_BYTES", 0)
    monkeypatch.setattr(compiler_module, "MAX_COMPILED_BYTES", 2000)
    monkeypatch.setattr(compiler_module, "MAX_USED_BYTES", 4000)
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    held.may_compile.set()
    used = compiler.compile(grammar("1"), tenant="a").result(TIMEOUT_S)
    held.may_compile.clear()
    running = compiler.compile(grammar(EXPENSIVE), tenant="a")
    while not compiler._compiling:
        time.sleep(0.001)
    assert isinstance(compiler.compile(grammar("2"), tenant="a").exception(TIMEOUT_S), QueueFull)
    other = compiler.compile(grammar("3"), tenant="b")
    held.may_compile.set()
    assert all(each.result(TIMEOUT_S) for each in (running, other))
    assert used

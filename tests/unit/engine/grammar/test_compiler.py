"""The cache of compiled grammars, and the bounds on compiling."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.grammar import compiler as compiler_module
from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.grammar import Grammar, GrammarKind
from tests.unit.engine.grammar_rig import NoTrial

TIMEOUT_S = 30
VOCAB_SIZE = 64


class AllowsToken:
    """A grammar that allows the token whose number is its source; none if that is negative."""

    num_bytes = 1000

    def __init__(self, source: str) -> None:
        self._token_id = int(source)

    def matcher(self, stop_token_ids: frozenset[int]) -> "AllowsToken":
        return self

    def accept(self, token_id: int) -> bool:
        return token_id == self._token_id

    def forced_text(self) -> str:
        return ""

    def fill(self, row: Tensor) -> None:
        row.zero_()
        if self._token_id >= 0:
            row[self._token_id // 32] = 1 << self._token_id % 32


class HeldBackend:
    """A backend that compiles nothing until it is released."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.may_compile = threading.Event()

    def compile(self, grammar: Grammar) -> AllowsToken:
        assert self.may_compile.wait(TIMEOUT_S)
        self.compiled.append(grammar.source)
        if grammar.source == "broken":
            raise RuntimeError("a fault of the library")
        if grammar.source == "bad":
            raise InvalidRequest("it is bad")
        return AllowsToken(grammar.source)

    def forced_token(self, text: str) -> None:
        return None

    def apply(self, logits: Tensor, masks: Tensor, rows: Sequence[int]) -> None:
        raise AssertionError("there are no logits here")


@pytest.fixture
def held() -> Iterator[HeldBackend]:
    backend = HeldBackend()
    yield backend
    backend.may_compile.set()


def grammar(source: str, field: str = "regex") -> Grammar:
    return Grammar(GrammarKind.REGEX, source, field=field)


def test_a_grammar_is_compiled_once_whatever_its_field_and_however_many_wait(held: HeldBackend) -> None:
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    waiting = [compiler.compile(grammar("1", field)) for field in ("regex", "guided_regex", "response_format")]
    held.may_compile.set()
    assert len({id(each.result(TIMEOUT_S)) for each in waiting}) == 1
    assert compiler.compile(grammar("1")).done()
    assert held.compiled == ["1"]
    assert (compiler.counters.num_compiles, compiler.counters.num_cache_hits) == (1, 3)


def test_a_grammar_that_cannot_be_compiled_is_not_tried_again(held: HeldBackend) -> None:
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for _ in range(2):
        assert isinstance(compiler.compile(grammar("bad")).exception(TIMEOUT_S), InvalidRequest)
        assert "matches no text" in str(compiler.compile(grammar("-1")).exception(TIMEOUT_S))
    assert sorted(held.compiled) == ["-1", "bad"]


def test_a_cached_failure_keeps_its_source_alone(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for source in ("bad", "a^"):
        error = compiler.compile(grammar(source)).exception(TIMEOUT_S)
        assert isinstance(error, InvalidRequest)
        assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
    monkeypatch.setattr(compiler_module, "MAX_CACHE_BYTES", 3000)
    for letter in "bca":  # the first of these is dropped again
        compiler.compile(grammar(f"{letter * 1000}^^")).exception(TIMEOUT_S)
    for letter in "abc":
        compiler.compile(grammar(f"{letter * 1000}^^")).exception(TIMEOUT_S)
    assert compiler.counters.num_cache_hits == 1  # then each drops the next one


def test_content_is_validated_once_on_a_compiling_thread(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    held.may_compile.set()
    threads: list[str] = []
    check = Grammar.check

    def noted_check(grammar: Grammar) -> None:
        threads.append(threading.current_thread().name)
        check(grammar)

    monkeypatch.setattr(Grammar, "check", noted_check)
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for source, field in (("1", "regex"), ("1", "guided_regex"), ("a^", "regex"), ("a^", "guided_regex")):
        error = compiler.compile(grammar(source, field)).exception(TIMEOUT_S)
        assert source == "1" or str(error).startswith("the regular expression has ^ at character 2")
    assert len(threads) == 2
    assert all(name.startswith("grammar compiler-") for name in threads)
    assert held.compiled == ["1"]


def test_a_fault_of_the_backend_is_not_the_requests_and_is_tried_again(held: HeldBackend) -> None:
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for _ in range(2):
        error = compiler.compile(grammar("broken")).exception(TIMEOUT_S)
        assert type(error) is EngineError
        assert "fault" not in str(error)
    assert held.compiled == ["broken", "broken"]


def test_a_compilation_on_a_stopped_machine_is_used_when_it_ends(held: HeldBackend) -> None:
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE, timeout_s=0.5)
    error = compiler.compile(grammar("1")).exception(TIMEOUT_S)
    assert type(error) is QueueFull
    assert "still being compiled" in str(error)
    held.may_compile.set()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not held.compiled or not compiler.compile(grammar("1")).done():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert compiler.compile(grammar("1")).result(0).compiled.num_bytes == 1000


class NotedTrial(NoTrial):
    """Refuses a grammar after a while, as one that takes too much."""

    def __init__(self, tried: list[str], error: EngineError | None) -> None:
        self._tried = tried
        self._error = error

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        self._tried.append(grammar.source)
        if self._error is not None:
            raise self._error


EXPENSIVE = "0" * 2000


@pytest.mark.parametrize(
    ("error", "num_tries"), [(InvalidRequest("too much"), 1), (QueueFull("busy"), 2), (EngineError("no process"), 2)]
)
def test_what_fails_its_trial_is_not_compiled(held: HeldBackend, error: EngineError, num_tries: int) -> None:
    held.may_compile.set()
    tried: list[str] = []
    compiler = GrammarCompiler(lambda: held, lambda: NotedTrial(tried, error), VOCAB_SIZE)
    for _ in range(2):
        assert compiler.compile(grammar(EXPENSIVE)).exception(TIMEOUT_S) is error
    assert compiler.compile(grammar("1")).result(TIMEOUT_S)  # cheap: not tried
    assert tried == [EXPENSIVE] * num_tries  # only what is wrong with the grammar itself is remembered
    assert held.compiled == ["1"]


def test_a_refused_grammar_fails_later_requests_with_its_salt(held: HeldBackend) -> None:
    held.may_compile.set()
    compiler, error = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE), InvalidRequest("too slow")
    for salt in ("a", "b"):
        compiler.compile(grammar("1"), salt).result(TIMEOUT_S)
    compiler.refuse(grammar("1"), "a", error)
    assert compiler.compile(grammar("1"), "a").exception(0) is error
    assert compiler.compile(grammar("1"), "b").result(0)
    assert held.compiled == ["1", "1"]


def test_a_first_mask_that_takes_too_long_refuses_its_grammar(
    held: HeldBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_FILL_S", -1.0)
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for _ in range(2):
        error = compiler.compile(grammar("1")).exception(TIMEOUT_S)
        assert "less ambiguous" in str(error)
    assert held.compiled == ["1"]


def test_only_requests_with_the_same_salt_share_a_grammar(held: HeldBackend) -> None:
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for salt in ("", "a", "b", "a"):
        compiler.compile(grammar("1"), salt).result(TIMEOUT_S)
    assert held.compiled == ["1"] * 3
    assert compiler.counters.num_cache_hits == 1


def test_the_queue_in_front_of_the_threads_is_bounded(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 6)
    monkeypatch.setattr(compiler_module, "WAIT_TIMEOUT_S", 0.2)
    compiler, waiting = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE), []
    for number in range(10):
        try:
            waiting.append(compiler.compile(grammar(f"{number}")))
        except QueueFull as error:
            assert str(error) == "too many jobs of grammar compiler are waiting; try again later"  # noqa: PT017
    assert 3 <= len(waiting) <= 3 + compiler_module.NUM_THREADS
    assert type(waiting[-1].exception(TIMEOUT_S)) is QueueFull  # after WAIT_TIMEOUT_S without a thread
    held.may_compile.set()
    assert waiting[0].result(TIMEOUT_S)


def test_the_cache_drops_the_least_recently_used(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_CACHE_BYTES", 3500)
    held.may_compile.set()
    compiler = GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE)
    for source in ("1", "2", "3", "1", "4", "1"):  # 4 drops 2
        compiler.compile(grammar(source)).result(TIMEOUT_S)
    compiler.compile(grammar("2")).result(TIMEOUT_S)  # drops 3
    compiler.compile(grammar("1")).result(TIMEOUT_S)
    assert held.compiled == ["1", "2", "3", "4", "2"]


def test_without_xgrammar_the_error_names_the_extra(held: HeldBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(InvalidRequest, match=r'pip install "baton-serve\[grammar\]"'):
        GrammarCompiler(lambda: held, NoTrial, VOCAB_SIZE).compile(grammar("1"))


def test_the_rig_sets_one_bit() -> None:
    row = torch.ones(2, dtype=torch.int32)
    AllowsToken("40").fill(row)
    assert row.tolist() == [0, 1 << 8]

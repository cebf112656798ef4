"""Trials in a real process: what takes too much time or memory is refused, and nothing of it is left."""

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.grammar import trial as trial_module
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.trial import ProcessTrial, Trials
from baton.engine.grammar.trial_process import MAX_WALK_TOKENS, NUM_REPEATS, walk
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, backend, byte_tokenizer, schema_grammar

pytestmark = pytest.mark.usefixtures("spawned_processes")  # they are found by their command lines

TIMEOUT_S = 60.0
MODEL = Path(str(files("baton"))) / "bundled_model"


def optional_properties(number: int, **limits: int) -> Grammar:
    properties = {f"p{place}": {"type": "integer"} for place in range(number)}
    return schema_grammar({"type": "object", "properties": properties, "additionalProperties": False, **limits})


ENDLESS = optional_properties(1000, minProperties=500, maxProperties=750)
LARGE = optional_properties(4000, minProperties=1000, maxProperties=3000)
WORD = Grammar(GrammarKind.REGEX, "[a-z]{1,99}")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def trial(directory: Path) -> Iterator[ProcessTrial]:
    process = ProcessTrial(directory, VOCAB_SIZE, frozenset({EOS}))
    yield process
    process.close()


def processes(directory: Path) -> set[int]:
    """Processes for trials with the directory's tokenizer."""
    found = set()
    for each in psutil.Process().children():
        with suppress(psutil.Error):  # a child of another test that has ended
            if str(directory) in each.cmdline():
                found.add(each.pid)
    return found


@pytest.mark.slow
def test_what_takes_too_long_is_refused_and_its_process_ends(
    trial: ProcessTrial, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "MIN_CPU_SHARE", 0.0)  # also on a busy machine
    trial.run(WORD, TIMEOUT_S)
    [process] = processes(directory)
    with pytest.raises(InvalidRequest, match="takes longer than 2 s to compile"):
        trial.run(ENDLESS, 2.0)
    assert not psutil.pid_exists(process)
    trial.run(WORD, TIMEOUT_S)  # by a new process
    assert len(processes(directory)) == 1


@pytest.mark.slow
def test_what_takes_too_much_memory_is_refused(trial: ProcessTrial) -> None:
    with pytest.raises(InvalidRequest, match="memory"):
        trial.run(LARGE, TIMEOUT_S)


@pytest.mark.slow
def test_masks_that_take_too_long_are_refused() -> None:
    """Later ones than the first: those of a token that begins another of many optional rules in many ways."""
    parts = [f"r{number}" for number in range(30)]
    rules = "".join(f"{part} ::= [a-z ]? y\n" for part in parts)
    source = f"root ::= [a-z] x*\nx ::= {' '.join(parts)}\n{rules}y ::= [a-z ]? | z\nz ::= [a-z .]? [a-z]?"
    config = json.loads((MODEL / "config.json").read_text())
    trial = ProcessTrial(MODEL, config["vocab_size"], frozenset({config["eos_token_id"]}))
    try:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="to match one token; make it less ambiguous"):
                trial.run(Grammar(GrammarKind.EBNF, source), TIMEOUT_S)
            trial.run(WORD, TIMEOUT_S)
    finally:
        trial.close()


class NotedWatch:
    num_restarts = 0

    def restart_clock(self) -> None:
        self.num_restarts += 1


def test_a_walk_draws_and_repeats_tokens_and_each_is_watched(tmp_path: Path) -> None:
    compiled, watch = backend(tmp_path).compile(Grammar(GrammarKind.EBNF, "root ::= [a-z]*")), NotedWatch()
    walked: list[int] = []

    class NotingMatcher:
        def __init__(self) -> None:
            self.matcher = compiled.matcher(frozenset({EOS}))

        def accept(self, token_id: int) -> bool:
            walked.append(token_id)
            return self.matcher.accept(token_id)

        def fill(self, row: Tensor) -> None:
            self.matcher.fill(row)

        def forced_text(self) -> str:
            raise AssertionError("a walk does not need it")

        def rollback(self, num_tokens: int) -> None:
            raise AssertionError("a walk does not need it")

    for _ in range(2):
        walk(NotingMatcher(), frozenset({EOS}), torch.zeros(-(-VOCAB_SIZE // 32), dtype=torch.int32), watch)
    assert walked[:MAX_WALK_TOKENS] == walked[MAX_WALK_TOKENS:]  # the same each time
    assert watch.num_restarts == 2 * len(walked)
    groups = [walked[start : start + 1 + NUM_REPEATS] for start in range(0, MAX_WALK_TOKENS, 1 + NUM_REPEATS)]
    assert all(len(set(group)) == 1 for group in groups)
    assert len(set(walked)) > 3


@pytest.mark.slow
def test_a_worker_with_many_descriptors_tries_grammars(directory: Path) -> None:
    trial = ProcessTrial(directory, VOCAB_SIZE, frozenset({EOS}))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        trial.run(WORD, TIMEOUT_S)
    finally:
        trial.close()
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_error_of_the_grammar_is_reported(trial: ProcessTrial) -> None:
    with pytest.raises(InvalidRequest, match='Rule "foo" is not defined'):
        trial.run(Grammar(GrammarKind.EBNF, "root ::= foo"), TIMEOUT_S)


def test_a_process_that_was_killed_or_ended_is_started_again(trial: ProcessTrial, directory: Path) -> None:
    trial.run(WORD, TIMEOUT_S)
    [process] = processes(directory)
    os.kill(process, 9)
    trial.run(WORD, TIMEOUT_S)
    assert processes(directory) != {process}


def test_a_stopped_process_is_not_the_grammars_fault(trial: ProcessTrial, directory: Path) -> None:
    trial.run(WORD, TIMEOUT_S)
    [process] = processes(directory)
    psutil.Process(process).suspend()
    with pytest.raises(QueueFull, match="too busy"):
        trial.run(WORD, 1.0)
    assert not psutil.pid_exists(process)


@pytest.mark.slow
def test_closing_ends_a_running_trial(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    trial, errors = ProcessTrial(tmp_path, VOCAB_SIZE, frozenset({EOS})), []
    trial.run(WORD, TIMEOUT_S)
    before = processes(tmp_path)

    def run() -> None:
        try:
            trial.run(ENDLESS, TIMEOUT_S)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    trial.close()
    thread.join(TIMEOUT_S)
    assert len(errors) == 1
    assert before
    assert not processes(tmp_path)
    with pytest.raises(EngineError, match="closed"):
        trial.run(WORD, TIMEOUT_S)


def test_a_process_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "MODULE", "no.such.module")
    with pytest.raises(EngineError, match="did not start"):
        ProcessTrial(tmp_path, VOCAB_SIZE, frozenset({EOS})).run(WORD, TIMEOUT_S)


@pytest.mark.slow
def test_a_process_that_ends_by_itself_is_gone(trial: ProcessTrial, directory: Path) -> None:
    trial.run(WORD, TIMEOUT_S)
    [pid] = processes(directory)
    os.kill(pid, signal.SIGKILL)
    end_s = time.monotonic() + TIMEOUT_S
    while psutil.pid_exists(pid):  # also as a zombie
        assert time.monotonic() < end_s
        time.sleep(0.01)
    trial.run(WORD, TIMEOUT_S)


def test_nothing_starts_after_the_end(tmp_path: Path) -> None:
    trials = Trials(lambda: ProcessTrial(tmp_path, VOCAB_SIZE, frozenset({EOS})))
    trials.close()
    with pytest.raises(EngineError, match="closed"):
        trials.run(WORD, TIMEOUT_S)

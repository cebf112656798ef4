"""Trials of grammars in another process, which is killed if one takes too much time or memory.

A thread that compiles cannot be interrupted, and its memory has no bound. So a grammar that may be expensive is first
compiled in a process that has bounds. Only what passed is compiled in this process: the compiled form of another
process would take longer to read than to make.
"""

import contextlib
import json
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Protocol

import psutil

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.grammar.grammar import Grammar

MODULE = "baton.engine.grammar.trial_process"
READY_TIMEOUT_S = 60.0  # importing xgrammar takes seconds
HEADER_BYTES = 4  # big-endian length of a message
CHECK_S = 1.0
NUM_ATTEMPTS = 2  # a process may end because it was not used, or be killed, just then
VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
MIN_CPU_SHARE = 0.5  # of the time, below which a trial was slow because the machine is busy


class Trial(Protocol):
    """A process in which grammars are tried, one after the other."""

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        """Compile a grammar and fill its first mask. Raises InvalidRequest if that fails or takes too much.

        Raises QueueFull if it took too long on a busy machine, EngineError if the process does not start.
        """
        ...

    def close(self) -> None:
        """End the process; `run` raises from now on."""
        ...


class ProcessTrial:
    """The real one. `run` is called by one thread at a time, `close` by any."""

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """The process starts at the first trial, and ends by itself when it is not used for a while."""
        eos = ",".join(map(str, sorted(eos_token_ids)))
        self._argv = [sys.executable, "-P", "-m", MODULE, str(directory), str(vocab_size), eos]
        self._running = threading.Lock()  # held by `run`
        self._lock = threading.Lock()  # guards the next two
        self._process: Popen[bytes] | None = None
        self._is_closed = False
        self._end_with_self: weakref.finalize[..., ProcessTrial] = weakref.finalize(self, _nothing)

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        """Try a grammar; see `Trial`."""
        with self._running:
            problem = self._tried(grammar, timeout_s)
        if problem is not None:
            raise InvalidRequest(problem)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()  # ends a running trial
            with self._running:
                _end(process)

    def _tried(self, grammar: Grammar, timeout_s: float) -> str | None:
        message = {"kind": grammar.kind.value, "source": grammar.source, "is_open": grammar.is_open}
        for _ in range(NUM_ATTEMPTS):
            process = self._started()
            try:
                _send(process, message)
                return _receive(process, timeout_s)
            except (EOFError, BrokenPipeError):
                _end(process)
            except (InvalidRequest, QueueFull):
                raise
            except BaseException:
                _end(process)  # its response, if it comes, is not the next trial's
                raise
        raise InvalidRequest("its compilation needs too much memory, or is not possible")

    def _started(self) -> "Popen[bytes]":
        """Return the process, which is started if there is none."""
        with self._lock:
            if self._is_closed:
                raise EngineError("the engine is closed")
            process = self._process
            if process is not None and process.poll() is None:
                return process
            if process is not None:
                _end(process)
            process = self._process = Popen(
                self._argv,
                stdin=PIPE,
                stdout=PIPE,
                env={**os.environ, **VARIABLES},
                start_new_session=True,  # Ctrl-C is for the worker, with which it ends
            )
            threading.Thread(target=process.wait, daemon=True).start()  # otherwise an idle one's end leaves a zombie
            self._end_with_self.detach()
            self._end_with_self = weakref.finalize(self, _end, process)
        try:
            _receive(process, READY_TIMEOUT_S)
        except (EOFError, InvalidRequest):
            _end(process)
            raise EngineError("the process that tries grammars did not start") from None
        return process


class Trials:
    """Processes for trials, as many as threads that compile; each is used by one thread at a time."""

    def __init__(self, make: Callable[[], Trial]) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards the rest
        self._idle: list[Trial] = []
        self._all: list[Trial] = []
        self._is_closed = False

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        """Try a grammar; see `Trial.run`."""
        with self._lock:
            if self._is_closed:
                raise EngineError("the engine is closed")
            if self._idle:
                trial = self._idle.pop()
            else:
                trial = self._make()
                self._all.append(trial)
        try:
            trial.run(grammar, timeout_s)
        finally:
            with self._lock:
                self._idle.append(trial)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            trials = list(self._all)
        for trial in trials:
            trial.close()


def _nothing() -> None:
    """Do nothing: no process has started."""


def _send(process: "Popen[bytes]", message: Mapping[str, object]) -> None:
    assert process.stdin is not None
    body = json.dumps(message).encode()
    process.stdin.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
    process.stdin.flush()


def _receive(process: "Popen[bytes]", timeout_s: float) -> str | None:
    """Return the problem that the process reports. Raises EOFError if it ends.

    Ends the process after the timeout; raises InvalidRequest then, or QueueFull if the machine is busy.
    """
    assert process.stdout is not None
    deadline_s, used_s = time.monotonic() + timeout_s, _cpu_s(process)
    readable = select.poll()  # not `select`, which takes no descriptor above 1,023
    readable.register(process.stdout, select.POLLIN)
    while not readable.poll(1e3 * min(CHECK_S, timeout_s)):
        if time.monotonic() < deadline_s:
            continue
        is_busy = _cpu_s(process) - used_s < MIN_CPU_SHARE * timeout_s
        _end(process)
        if is_busy:
            raise QueueFull("this machine is too busy to compile the grammar; try again later")
        raise InvalidRequest(f"it takes longer than {timeout_s:g} s to compile; simplify it")
    header = process.stdout.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise EOFError
    problem: str | None = json.loads(process.stdout.read(int.from_bytes(header, "big")))["problem"]
    return problem


def _end(process: "Popen[bytes]") -> int:
    """End a process, unless it has ended, and return its status."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # a message that it did not read
            pipe.close()
    return process.wait()


def _cpu_s(process: "Popen[bytes]") -> float:
    try:
        times: Sequence[float] = psutil.Process(process.pid).cpu_times()[:2]
    except psutil.Error:
        return 0.0
    return sum(times)

"""An engine in a process of its own, driven by lines of JSON: one in, one out.

    {"load": {...}}     the fields of `Setting`; answered by {"version": ...}
    {"run": {"prompts": [[...]], "num_output_tokens": 64, "concurrency": 8}}     answered by {"answers": [...]}

The standard library alone is imported here, so that this runs in every engine's environment. An engine's script defines
a class with the methods of `Engine` and calls `serve`.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Protocol, TextIO

DIE_WITH_PARENT = 1  # Linux: PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine is loaded with; all engines get the same."""

    model: str  # directory or file, in the engine's own format
    weights: str  # bf16, int8
    kv_cache: str  # bf16, int8
    num_threads: int
    max_num_seqs: int  # requests at a time
    max_model_len: int  # prompt plus output
    prefix_caching: bool

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the KV cache must hold; whoever has it in blocks needs a last one more for each request."""
        return self.max_num_seqs * self.max_model_len


@dataclass(frozen=True, slots=True)
class NewTokens:
    """What a step gave one request."""

    request: int
    token_ids: list[int]


class Engine(Protocol):
    """What a driver makes of an engine. Greedy, and an end of sequence ends nothing."""

    version: str

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Takes a request, to be computed by the steps that follow."""
        ...

    def step(self) -> Iterable[NewTokens]:
        """Computes, or waits for what is computed; perhaps there is nothing new yet."""
        ...


@dataclass(slots=True)
class Answer:
    """One request: seconds of this process's clock, and the tokens."""

    submitted_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)


class ClosedLoop:
    """Owns the clients: each sends its next request when its last one has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_requests = 0  # since the start; the engine's names for them

    def run(self, prompts: Sequence[Sequence[int]], num_output_tokens: int, concurrency: int) -> list[Answer]:
        """So many clients, until all prompts are answered; answers in the prompts' order."""
        first = self._num_requests
        waiting = deque(prompts)
        answers: list[Answer] = []
        num_ended = 0
        while num_ended < len(prompts):
            while waiting and len(answers) - num_ended < concurrency:
                answers.append(Answer(perf_counter()))
                self._engine.add(self._num_requests, waiting.popleft(), num_output_tokens)
                self._num_requests += 1
            new = list(self._engine.step())
            now_s = perf_counter()
            for each in new:
                answer = answers[each.request - first]
                answer.first_s = answer.first_s or now_s
                answer.last_s = now_s
                answer.token_ids += each.token_ids
                num_ended += len(answer.token_ids) == num_output_tokens
                if len(answer.token_ids) > num_output_tokens:
                    raise RuntimeError(f"{len(answer.token_ids)} tokens came, {num_output_tokens} were asked for")
        return answers


def serve(load: Callable[[Setting], Engine]) -> None:
    """Answers line for line until stdin is closed. What libraries print goes to stderr."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)  # even in the middle of a run
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _serve(load, sys.stdin, answers)
    except Exception as error:  # the benchmark says so, with what was printed
        traceback.print_exc()
        _write(answers, {"error": f"{type(error).__name__}: {error}"})
    answers.close()
    sys.stderr.flush()
    os._exit(0)  # some engines' threads and children outlast a plain exit


def _serve(load: Callable[[Setting], Engine], lines: TextIO, answers: TextIO) -> None:
    engine = load(Setting(**json.loads(lines.readline())["load"]))
    _write(answers, {"version": engine.version})
    loop = ClosedLoop(engine)
    for line in lines:
        _write(answers, {"answers": [asdict(answer) for answer in loop.run(**json.loads(line)["run"])]})


def _write(answers: TextIO, message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()

"""Driver of an engine in a separate process by lines of JSON: one request line, one response line.

    {"load": {...}}     the fields of `Setting`; answered by {"version": ...}
    {"run": {"prompts": [[...]], "num_output_tokens": 64, "concurrency": 8}}     answered by {"answers": [...]}

Imports only the standard library, so that it runs in every engine's environment. An engine's script defines a class
with the methods of `Engine` and calls `serve`.
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
    """Settings to load an engine with; the same for all engines."""

    model: str  # directory or file, in the engine's own format
    weights: str  # bf16, int8
    kv_cache: str  # bf16, int8
    num_threads: int
    max_num_seqs: int  # concurrent requests
    max_model_len: int  # prompt plus output
    prefix_caching: bool
    num_drafts: int = 0  # most tokens of a draft, found in the prompt and the output; 0: no drafts

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the KV cache must hold. A paged cache needs one more block per request."""
        return self.max_num_seqs * self.max_model_len


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens that a step produced for one request."""

    request: int
    token_ids: list[int]


class Engine(Protocol):
    """Interface of a driven engine: greedy sampling, end-of-sequence tokens ignored."""

    version: str

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request for the next steps."""
        ...

    def step(self) -> Iterable[NewTokens]:
        """Run or await a step, and return its tokens, if any."""
        ...


@dataclass(slots=True)
class Answer:
    """Times, on this process's clock, and tokens of one request."""

    submitted_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)


class ClosedLoop:
    """Clients that each send the next request when their previous one has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_requests = 0  # since the start; also the requests' ids

    def run(self, prompts: Sequence[Sequence[int]], num_output_tokens: int, concurrency: int) -> list[Answer]:
        """Run `concurrency` clients until all prompts are done; return the answers in the order of the prompts."""
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
                    raise RuntimeError(f"{len(answer.token_ids)} tokens received, {num_output_tokens} requested")
        return answers


def serve(load: Callable[[Setting], Engine]) -> None:
    """Respond to each line until stdin is closed. Output of libraries is redirected to stderr."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)  # even in the middle of a run
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _serve(load, sys.stdin, answers)
    except Exception as error:  # reported to the benchmark
        traceback.print_exc()
        _write(answers, {"error": f"{type(error).__name__}: {error}"})
    answers.close()
    sys.stderr.flush()
    os._exit(0)  # threads and children of some engines survive a plain exit


def _serve(load: Callable[[Setting], Engine], lines: TextIO, answers: TextIO) -> None:
    engine = load(Setting(**json.loads(lines.readline())["load"]))
    _write(answers, {"version": engine.version})
    loop = ClosedLoop(engine)
    for line in lines:
        _write(answers, {"answers": [asdict(answer) for answer in loop.run(**json.loads(line)["run"])]})


def _write(answers: TextIO, message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()

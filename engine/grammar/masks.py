"""Masks of a step: which tokens each request's grammar allows next.

1. A request enters with its grammar, which is compiled on a thread. Until then the request is not sampled; its prompt
   is computed in the meantime, and other requests step on.
2. Before the model computes a step, the matching of the last token and the next mask of each of its requests are
   started on other threads.
3. When the model has computed the logits, the masks are collected. After WAIT_S at most, the requests whose masks are
   missing miss this step. Their masks are the first of the next step.
4. Masks of a request of which one took long, the first of its grammar included, are filled between the steps: the other
   requests never wait for them again.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.execution.device import to_device_async
from baton.engine.grammar.compiler import SLOW_FILL_S, GrammarCompiler, ReadyGrammar
from baton.engine.grammar.position import GrammarPosition
from baton.engine.grammar.threads import DaemonThreads
from baton.engine.request import Request

logger = logging.getLogger(__name__)

MIN_THREADS, MAX_THREADS = 2, 8  # for masks that a step waits for; between them half of the cores
NUM_SLOW_THREADS = 2
MAX_JOBS = 4096
MIN_ROWS_PER_JOB = 4
WAIT_S = 0.1  # of a step, for all of its masks together
MAX_FILL_S = 2.0  # time of one mask at which its request fails


class Phase(Enum):
    """State of a mask that was started."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLED = "cancelled"  # before it ran


@dataclass(slots=True, eq=False)
class _Fill:
    """A mask that was started."""

    state: "_State"
    token_ids: Sequence[int]  # output tokens to match first
    is_awaited: bool  # by a step; otherwise on the threads for slow masks
    phase: Phase = Phase.QUEUED
    started_at_s: float = 0.0  # monotonic clock
    is_late: bool = False  # awaited and long, and the step went on without it


@dataclass(slots=True, eq=False)
class _State:
    """A request's grammar in this engine."""

    request: "ref[Request]"
    stop_token_ids: frozenset[int]
    position: GrammarPosition | None = None  # None: the grammar is not compiled
    num_masked: int = -1  # output tokens that precede the mask in `position`
    is_slow: bool = False
    num_missed: int = 0  # consecutive steps without its mask, because those of other requests were in front
    fill: _Fill | None = None
    error: EngineError | None = None

    def lacks_mask(self, request: Request) -> bool:
        """Return whether the mask of the next token can be filled and was not started."""
        is_idle = self.position is not None and self.error is None and self.fill is None
        return is_idle and self.num_masked != request.num_output_tokens


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Masks of a step's sampled requests."""

    compiler: GrammarCompiler
    masks: Tensor  # [num_rows, num_words] int32 on the CPU; all ones for requests without a grammar
    rows: Sequence[int]  # those with a grammar and a mask
    late_rows: frozenset[int]  # without a mask: their samples must not be used

    def apply(self, logits: Tensor) -> None:
        """Set the logits of forbidden tokens to -inf in place; [num_rows, vocab] float32."""
        if self.rows:
            self.compiler.backend.apply(logits, to_device_async(self.masks, logits.device), self.rows)


class GrammarMasks:
    """The grammars of an engine's requests, and the threads that fill their masks. Called by the engine's thread."""

    def __init__(self, compiler: GrammarCompiler, eos_token_ids: frozenset[int]) -> None:
        self.counters = compiler.counters
        self._compiler = compiler
        self._num_words = compiler.num_words
        self._eos_token_ids = eos_token_ids
        self._num_threads = min(MAX_THREADS, max(MIN_THREADS, len(os.sched_getaffinity(0)) // 2))
        self._threads = DaemonThreads("grammar masks", self._num_threads, MAX_JOBS)
        self._slow_threads = DaemonThreads("slow grammar masks", NUM_SLOW_THREADS, MAX_JOBS)
        self._states: WeakKeyDictionary[Request, _State] = WeakKeyDictionary()
        self._changed = threading.Condition()  # guards the states, except for the position of a running fill
        self._num_stuck = 0  # awaited fills that are late and still running
        self._failed: list[_State] = []
        self._wake: Callable[[], object] = _nothing

    def listen(self, wake: Callable[[], object]) -> None:
        """Call `wake`, on any thread, when a request that could not be sampled can be, or has failed."""
        self._wake = wake

    @property
    def has_failures(self) -> bool:
        """Whether `take_failures` has something to return."""
        return bool(self._failed)

    def enter(self, request: Request) -> None:
        """Start compiling a request's grammar; no-op without one. Raises InvalidRequest or QueueFull.

        Any output that the request already has must continue: an EOS token would have ended it.
        """
        grammar = request.sampling.grammar
        if grammar is None:
            return
        if not self._eos_token_ids:
            raise grammar.invalid("the model's config.json has no eos_token_id, with which a structured output ends")
        if not self._eos_token_ids.isdisjoint(request.token_ids[request.num_prompt_tokens :]):
            raise grammar.invalid("the output has already ended: it contains an EOS token")
        try:
            compiling = self._compiler.compile(grammar)
        except InvalidRequest as error:
            raise grammar.invalid(str(error)) from error
        state = self._states[request] = _State(ref(request), self._eos_token_ids)
        compiling.add_done_callback(partial(self._on_compiled, state))

    def may_sample(self, request: Request) -> bool:
        """Return whether the next step can wait for the request's mask; True without a grammar."""
        state = self._states.get(request)
        if state is None:
            return True
        with self._changed:
            if state.position is None or state.error is not None:
                return False
            if state.num_masked == request.num_output_tokens:
                return True
            if state.is_slow:
                if state.fill is None:
                    self._start([self._fill(state, request, is_awaited=False)])
                return False
            return self._num_stuck < self._num_threads

    def begin(self, requests: Sequence[Request]) -> None:
        """Start filling the masks of the requests that a step samples."""
        fills = []
        with self._changed:
            for request in requests:
                state = self._states.get(request)
                if state is not None and state.lacks_mask(request):
                    fills.append(self._fill(state, request, is_awaited=True))
            fills.sort(key=lambda fill: -fill.state.num_missed)  # so that none starves
            num_jobs = min(self._num_threads, -(-len(fills) // MIN_ROWS_PER_JOB))
            for number in range(num_jobs):
                self._start(fills[number::num_jobs])

    def collect(self, requests: Sequence[Request]) -> StepMasks | None:
        """Wait for the masks that `begin` has started, as the module says; None if no request has a grammar."""
        states = [(row, request, state) for row, request in enumerate(requests) if (state := self._states.get(request))]
        if not states:
            return None
        with self._changed:
            self._changed.wait_for(lambda: not any(state.fill for _, _, state in states), WAIT_S)
            masks = torch.full((len(requests), self._num_words), -1, dtype=torch.int32)
            rows, late = [], []
            for row, request, state in states:
                if state.num_masked == request.num_output_tokens:
                    assert state.position is not None
                    masks[row] = state.position.row
                    rows.append(row)
                else:
                    late.append(row)
                    self._note_late(state)
        return StepMasks(self._compiler, masks, rows, frozenset(late))

    def take_failures(self) -> list[tuple[Request, EngineError]]:
        """Return the requests that cannot continue, once each, with the reason."""
        with self._changed:
            failed, self._failed = self._failed, []
        found = [(state.request(), state.error) for state in failed]
        return [(request, error) for request, error in found if request is not None and error is not None]

    def _on_compiled(self, state: _State, compiling: "Future[ReadyGrammar]") -> None:
        """Called on the compiling thread, on a timer, or at once if the grammar was in the cache."""
        request = state.request()
        if request is None:
            return
        sampling, error = request.sampling, compiling.exception()
        with self._changed:
            if error is not None:
                self._fail(state, request, error)
            else:
                ready = compiling.result()
                stops = sampling.stop_token_ids | self._eos_token_ids
                try:
                    state.position = GrammarPosition(
                        ready.compiled.matcher(self._eos_token_ids), self._num_words, sorted(stops), sampling.min_tokens
                    )
                except Exception as fault:  # of the library
                    self._fail(state, request, fault)
                state.is_slow = ready.is_slow
        self._wake()

    def _fill(self, state: _State, request: Request, is_awaited: bool) -> _Fill:
        assert state.position is not None
        start = request.num_prompt_tokens + state.position.num_tokens
        state.fill = _Fill(state, request.token_ids[start:], is_awaited)
        return state.fill

    def _start(self, fills: Sequence[_Fill]) -> None:
        threads = self._threads if fills[0].is_awaited else self._slow_threads
        try:
            threads.submit(lambda: self._run(fills))
        except QueueFull:  # they are tried again in the next step
            for fill in fills:
                fill.state.fill = None

    def _run(self, fills: Sequence[_Fill]) -> None:
        """Fill masks, on a thread."""
        for fill in fills:
            state = fill.state
            with self._changed:
                if fill.phase is Phase.CANCELLED or state.request() is None:
                    continue
                fill.phase, fill.started_at_s = Phase.RUNNING, time.monotonic()
            problem, started_s = None, time.thread_time()  # not the clock: other threads may take turns
            try:
                assert state.position is not None
                state.position.advance(fill.token_ids)
            except Exception as error:  # a ValueError is the request's problem, others are faults of the library
                problem = error
            duration_s = time.thread_time() - started_s
            if duration_s > MAX_FILL_S:
                problem = ValueError(f"it took {duration_s:.1f} s to match one token; make it less ambiguous")
            self._note_filled(fill, duration_s, problem)

    def _note_filled(self, fill: _Fill, duration_s: float, problem: Exception | None) -> None:
        state = fill.state
        with self._changed:
            self.counters.num_masks += 1
            self.counters.mask_s += duration_s
            assert state.position is not None
            state.fill, state.num_missed = None, 0
            state.num_masked = state.position.num_tokens if problem is None else -1
            self._num_stuck -= fill.is_late
            request = state.request()
            if problem is not None and request is not None:
                self._fail(state, request, problem)
            self._changed.notify_all()
        if not fill.is_awaited or fill.is_late or problem is not None:
            self._wake()

    def _note_late(self, state: _State) -> None:
        """Fill the state's masks between steps from now on, if it is its own mask that takes long."""
        self.counters.num_late_masks += 1
        fill = state.fill
        if fill is None:
            return
        if fill.phase is Phase.QUEUED:
            fill.phase = Phase.CANCELLED
            state.fill = None
            state.num_missed += 1
        elif time.monotonic() - fill.started_at_s > SLOW_FILL_S:
            state.is_slow = fill.is_late = True
            self._num_stuck += 1

    def _fail(self, state: _State, request: Request, error: BaseException) -> None:
        grammar = request.sampling.grammar
        assert grammar is not None
        if isinstance(error, InvalidRequest | ValueError):
            state.error = grammar.invalid(str(error))
        elif isinstance(error, EngineError):
            state.error = error
        else:
            logger.error("a mask could not be filled", exc_info=error)
            state.error = EngineError("a mask of the grammar could not be filled")
        self._failed.append(state)


def _nothing() -> None:
    """Ignore a call: nothing listens."""

"""Masks of a step: which tokens each request's grammar allows next.

1. A request enters with its grammar, which is compiled on a thread. Until then the request is not sampled; its prompt
   is computed in the meantime, and other requests step on.
2. Before the model computes a step, the matching of the last token and the next mask of each of its requests are
   started on other threads.
3. When the model has computed the logits, the masks are collected. After WAIT_S at most, the requests whose masks are
   missing miss this step. Their masks are the first of the next step.
4. Masks of a request of which one took long, the first of its grammar included, are filled between the steps: the other
   requests never wait for them again.
5. Tokens that the grammar forces are appended together with the sampled one, without a step each. They are computed
   together by the next step. Requests with logprobs sample them one by one, from masks that allow nothing else.
6. A request fails once one of its tokens, or its mask, has taken MAX_FILL_S. The thread cannot be interrupted, so that
   another one replaces it until the mask is filled. While MAX_REPLACED are replaced, new requests with a grammar get
   QueueFull.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.execution.device import to_device_async
from baton.engine.grammar.compiler import SLOW_FILL_S, GrammarCompiler, ReadyGrammar
from baton.engine.grammar.mask_fill import GrammarState, MaskFill, Phase
from baton.engine.grammar.position import GrammarPosition
from baton.engine.grammar.threads import DaemonThreads
from baton.engine.request import Request

logger = logging.getLogger(__name__)

MIN_THREADS, MAX_THREADS = 2, 8  # for masks that a step waits for; between them half of the cores
NUM_SLOW_THREADS = 2
MAX_JOBS = 4096
MIN_ROWS_PER_JOB = 4
WAIT_S = 0.1  # of a step, for all of its masks together
MAX_FILL_S = 2.0  # CPU time of matching one token, or of one mask, at which its request fails
MAX_AWAITED_TOKENS = 64  # to match for a mask that a step waits for; a moved request may have thousands
CHECK_S = 0.25  # period of the check of running masks
MAX_REPLACED = 4  # threads whose mask goes on after its request has failed


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Masks of a step's sampled requests."""

    compiler: GrammarCompiler
    masks: Tensor  # [num_rows, num_words] int32 on the CPU; all ones for requests without a grammar
    rows: Sequence[int]  # those with a grammar and a mask
    late_rows: frozenset[int]  # without a mask: their samples must not be used
    forced: Mapping[int, Sequence[int]]  # by row: tokens that follow the sampled one, in any case

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
        self._states: WeakKeyDictionary[Request, GrammarState] = WeakKeyDictionary()
        self._changed = threading.Condition()  # guards the states, except for the position of a running fill
        self._num_stuck = 0  # awaited fills that are late and still running, on threads that are not replaced
        self._num_replaced = 0
        self._running: set[MaskFill] = set()  # except for those dropped
        self._timer: threading.Timer | None = None  # exists while something runs
        self._failed: list[GrammarState] = []
        self._wake: Callable[[], object] = _nothing

    def listen(self, wake: Callable[[], object]) -> None:
        """Call `wake`, on any thread, when a request that could not be sampled can be, or has failed."""
        self._wake = wake

    def close(self) -> None:
        """End the processes of the compiler."""
        self._compiler.close()

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
        if self._num_replaced >= MAX_REPLACED:
            raise QueueFull("masks of ambiguous grammars occupy the threads that fill masks; try again later")
        try:
            compiling = self._compiler.compile(grammar, request.cache_salt)
        except InvalidRequest as error:
            raise grammar.invalid(str(error)) from error
        state = self._states[request] = GrammarState(ref(request), self._eos_token_ids)
        compiling.add_done_callback(partial(self._on_compiled, state))

    def may_sample(self, request: Request) -> bool:
        """Return whether the next step can wait for the request's mask; True without a grammar."""
        state = self._state_of(request)
        if state is None:
            return True
        with self._changed:
            if state.position is None or state.error is not None:
                return False
            if state.num_masked == request.num_output_tokens:
                return True
            if state.fill is not None and not state.fill.is_awaited:
                return False
            if state.is_slow or request.num_output_tokens - state.position.num_tokens > MAX_AWAITED_TOKENS:
                if state.fill is None:
                    self._start([self._fill(state, request, is_awaited=False)])
                return False
            return self._num_stuck < self._num_threads

    def begin(self, requests: Sequence[Request]) -> None:
        """Start filling the masks of the requests that a step samples."""
        states = [(request, state) for request in requests if (state := self._state_of(request))]
        if not states:
            return
        with self._changed:
            fills = [
                self._fill(state, request, is_awaited=True) for request, state in states if state.lacks_mask(request)
            ]
            fills.sort(key=lambda fill: -fill.state.num_missed)  # so that none starves
            num_jobs = min(self._num_threads, -(-len(fills) // MIN_ROWS_PER_JOB))
            for number in range(num_jobs):
                self._start(fills[number::num_jobs])

    def collect(self, requests: Sequence[Request]) -> StepMasks | None:
        """Wait for the masks that `begin` has started, as the module says; None if no request has a grammar."""
        states = [(row, request, state) for row, request in enumerate(requests) if (state := self._state_of(request))]
        if not states:
            return None
        with self._changed:
            self._changed.wait_for(lambda: not any(state.fill for _, _, state in states), WAIT_S)
            masks = torch.full((len(requests), self._num_words), -1, dtype=torch.int32)
            rows, late, forced = [], [], {}
            for row, request, state in states:
                if state.num_masked == request.num_output_tokens:
                    assert state.position is not None
                    masks[row] = state.position.row
                    rows.append(row)
                    if len(state.position.forced) > 1 and request.sampling.logprobs is None:
                        forced[row] = list(state.position.forced)[1:]
                else:
                    late.append(row)
                    self._note_late(state)
        return StepMasks(self._compiler, masks, rows, frozenset(late), forced)

    def take_failures(self) -> list[tuple[Request, EngineError]]:
        """Return the requests that cannot continue, once each, with the reason."""
        if not self._failed:
            return []
        with self._changed:
            failed, self._failed = self._failed, []
        found = [(state.request(), state.error) for state in failed]
        return [(request, error) for request, error in found if request is not None and error is not None]

    def _state_of(self, request: Request) -> GrammarState | None:
        """Return the state of a request with a grammar; cheap for others, of which every step has many."""
        return None if request.sampling.grammar is None else self._states.get(request)

    def _on_compiled(self, state: GrammarState, compiling: "Future[ReadyGrammar]") -> None:
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
                        ready.compiled.matcher(self._eos_token_ids),
                        self._compiler.backend.forced_token,
                        self._num_words,
                        sorted(stops),
                        sampling.min_tokens,
                        ready.has_short_forced_texts,
                    )
                except Exception as fault:  # of the library
                    self._fail(state, request, fault)
                state.is_slow = ready.is_slow
        self._wake()

    def _fill(self, state: GrammarState, request: Request, is_awaited: bool) -> MaskFill:
        assert state.position is not None
        start = request.num_prompt_tokens + state.position.num_tokens
        state.fill = MaskFill(state, request.token_ids[start:], is_awaited)
        return state.fill

    def _start(self, fills: Sequence[MaskFill]) -> None:
        try:
            self._threads_of(fills[0]).submit(lambda: self._run(fills))
        except QueueFull:  # they are tried again in the next step
            for fill in fills:
                fill.state.fill = None

    def _threads_of(self, fill: MaskFill) -> DaemonThreads:
        return self._threads if fill.is_awaited else self._slow_threads

    def _run(self, fills: Sequence[MaskFill]) -> None:
        """Fill masks, on a thread."""
        for fill in fills:
            state = fill.state
            with self._changed:
                if fill.phase is Phase.CANCELLED or state.request() is None:
                    continue
                fill.start()
                self._running.add(fill)
                self._check_later()
            problem = None
            try:
                assert state.position is not None
                state.position.advance(fill.token_ids, fill.restart_clock)
            except Exception as error:  # a ValueError is the request's problem, others are faults of the library
                problem = error
            last_s = fill.cpu_s
            self._note_filled(fill, fill.total_cpu_s, _took(last_s) if last_s > MAX_FILL_S else problem)

    def _note_filled(self, fill: MaskFill, duration_s: float, problem: Exception | None) -> None:
        state = fill.state
        with self._changed:
            self.counters.num_masks += 1
            self.counters.mask_s += duration_s
            self._num_stuck -= fill.is_late and not fill.is_replaced
            if fill.is_replaced:
                self._num_replaced -= 1
                self._threads_of(fill).end_replacement()
            if fill.phase is not Phase.DROPPED:
                assert state.position is not None
                self._running.discard(fill)
                state.fill, state.num_missed = None, 0
                state.num_masked = state.position.num_tokens if problem is None else -1
                request = state.request()
                if problem is not None and request is not None:
                    self._fail(state, request, problem)
            self._changed.notify_all()
        if not fill.is_awaited or fill.is_late or problem is not None:
            self._wake()

    def _check_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(CHECK_S, self._check)
            self._timer.daemon = True
            self._timer.start()

    def _check(self) -> None:
        """Drop the fills that run for too long. Called by the timer."""
        with self._changed:
            self._timer = None
            overdue = [fill for fill in self._running if fill.cpu_s > MAX_FILL_S]
            for fill in overdue:
                self._drop(fill)
            if self._running:
                self._check_later()
        if overdue:
            self._wake()

    def _drop(self, fill: MaskFill) -> None:
        """Fail the request of a running fill, and replace its thread."""
        fill.phase = Phase.DROPPED
        self._running.discard(fill)
        request = fill.state.request()
        if request is not None:
            self._fail(fill.state, request, _took(fill.cpu_s))
        fill.state.fill = None
        if self._num_replaced < MAX_REPLACED:
            fill.is_replaced = True
            self._num_replaced += 1
            self._num_stuck -= fill.is_late
            self._threads_of(fill).replace_one()
        self._changed.notify_all()

    def _note_late(self, state: GrammarState) -> None:
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

    def _fail(self, state: GrammarState, request: Request, error: BaseException) -> None:
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


def _took(duration_s: float) -> ValueError:
    return ValueError(f"it took {duration_s:.1f} s to match one token; make it less ambiguous")


def _nothing() -> None:
    """Ignore a call: nothing listens."""

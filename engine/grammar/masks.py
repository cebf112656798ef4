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
6. A request fails once one of its tokens, or its mask, has taken MAX_FILL_S, and so do all others with the same grammar
   and cache salt, now and later. The thread cannot be interrupted, so that another one replaces it until the mask is
   filled. While a tenant has several such masks, its other requests start no masks of grammars that are not cheap.
7. A request that was not sampled for MAX_WAIT_S because its mask was missing fails with QueueFull: another worker may
   continue it. It does not fail if only the engine's next step is missing, as while another rank hangs.
8. If matchers take too much memory, the requests with the largest ones fail.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.execution.device import to_device_async
from baton.engine.grammar.compiler import GrammarCompiler, ReadyGrammar
from baton.engine.grammar.cost import is_surely_cheap
from baton.engine.grammar.grammar import Grammar
from baton.engine.grammar.mask_fill import GrammarState, MaskFill, Phase, SlowMask
from baton.engine.grammar.position import GrammarPosition
from baton.engine.grammar.state_memory import StateMemory
from baton.engine.grammar.threads import MaskThreads
from baton.engine.request import Request
from baton.engine.speculation.drafted_rows import NO_DRAFTS, Drafted

logger = logging.getLogger(__name__)

WAIT_S = 0.1  # of a step, for all of its masks together
MAX_WAIT_S = 20.0  # of a request, for the mask of its next token
MAX_AWAITED_TOKENS = 64  # to match for a mask that a step waits for; a moved request may have thousands
CHECK_S = 0.25  # period of the check of running masks and waiting requests


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
        self._states: WeakKeyDictionary[Request, GrammarState] = WeakKeyDictionary()
        self._changed = threading.Condition()  # guards the states, except for the position of a running fill
        self._threads = MaskThreads(self._changed, self._check_later, self._note_filled)
        self._memory = StateMemory()
        self._timer: threading.Timer | None = None  # exists while there is something to check
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
        self._check_room(grammar, request.tenant)
        try:
            compiling = self._compiler.compile(grammar, request.cache_salt, request.tenant)
        except InvalidRequest as error:
            raise grammar.invalid(str(error)) from error
        state = GrammarState(ref(request), grammar, request.cache_salt, request.tenant)
        with self._changed:
            if not self._states and self._threads.is_idle:
                self._memory.note_empty()
            self._states[request] = state
        compiling.add_done_callback(partial(self._on_compiled, ref(state)))  # the cache keeps it after the request

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
            if self._may_await(state, request):
                if not state.num_missed or state.has_waited(MAX_WAIT_S):  # in the latter case for the engine's step
                    state.waiting_since_s = None
                return True
            state.note_wait()
            self._check_later()
            return False

    def may_draft(self, request: Request) -> bool:
        """Return whether the masks of drafted tokens can be filled with the next one; True without a grammar."""
        state = self._state_of(request)
        if state is None:
            return request.sampling.grammar is None
        with self._changed:
            return state.is_cheap and not state.is_slow and state.lacks_mask(request)

    def begin(self, requests: Sequence[Request], drafted: Drafted = NO_DRAFTS) -> None:
        """Start filling the masks of the requests that a step samples.

        drafted: by row, tokens that precede its token and that the request does not have yet. The rows of a request are
        in the order of their number.
        """
        rows = ((row, request) for row, request in enumerate(requests) if request.sampling.grammar is not None)
        drafts = {request: drafted.get(row, ()) for row, request in rows}
        states = [(request, state) for request in drafts if (state := self._state_of(request))]
        if not states:
            return
        with self._changed:
            lacking = [(request, state) for request, state in states if state.lacks_mask(request)]
            self._threads.start_awaited(
                [self._fill(state, request, is_awaited=True, drafts=drafts[request]) for request, state in lacking]
            )

    def collect(self, requests: Sequence[Request], drafted: Drafted = NO_DRAFTS) -> StepMasks | None:
        """Wait for the masks that `begin` has started, as the module says; None if no request has a grammar."""
        states = [(row, request, state) for row, request in enumerate(requests) if (state := self._state_of(request))]
        if not states:
            return None
        with self._changed:
            self._changed.wait_for(lambda: not any(state.fill for _, _, state in states), WAIT_S)
            masks = torch.full((len(requests), self._num_words), -1, dtype=torch.int32)
            rows, late, forced = [], [], {}
            for row, request, state in states:
                num_drafted = len(drafted.get(row, ()))
                if (allowed := state.allowed(request, num_drafted)) is not None:
                    masks[row] = allowed.row
                    rows.append(row)
                    if len(allowed.forced) > 1 and request.sampling.logprobs is None:
                        forced[row] = allowed.forced[1:]
                else:
                    late.append(row)
                    if not num_drafted:
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

    def _check_room(self, grammar: Grammar, tenant: str) -> None:
        """Raise QueueFull if masks that take long leave no thread for those of a new request."""
        with self._changed:
            is_blocked = partial(self._threads.is_blocked, tenant)
            if self._threads.is_full or is_blocked(True) or (is_blocked(False) and not is_surely_cheap(grammar)):
                raise QueueFull("masks of ambiguous grammars occupy the threads that fill masks; try again later")

    def _may_await(self, state: GrammarState, request: Request) -> bool:
        """Return whether the next step can wait for a mask that is not filled; start it if it is a slow one."""
        assert state.position is not None
        if state.fill is not None and not state.fill.is_awaited:
            return False
        if state.is_slow or request.num_output_tokens - state.position.num_tokens > MAX_AWAITED_TOKENS:
            if state.fill is None and not self._threads.is_blocked(state.tenant, state.is_cheap):
                self._threads.start([self._fill(state, request, is_awaited=False)])
            return False
        return self._threads.may_await(state)

    def _on_compiled(self, entered: "ref[GrammarState]", compiling: "Future[ReadyGrammar]") -> None:
        """Called on the compiling thread, on a timer, or at once if the grammar was in the cache."""
        state = entered()
        request = state.request() if state is not None else None
        if state is None or request is None:
            return
        sampling, error = request.sampling, compiling.exception()
        with self._changed:
            if error is not None:
                self._fail(state, error)
            else:
                state.ready = ready = compiling.result()
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
                    self._fail(state, fault)
                state.is_slow, state.is_cheap = ready.is_slow, ready.is_cheap
        self._wake()

    def _fill(self, state: GrammarState, request: Request, is_awaited: bool, drafts: Sequence[int] = ()) -> MaskFill:
        assert state.position is not None
        start = request.num_prompt_tokens + state.position.num_tokens
        state.fill = MaskFill(state, request.token_ids[start:], is_awaited, drafts)
        return state.fill

    def _note_filled(self, fill: MaskFill, problem: Exception | None) -> None:
        """Take over a filled mask, or the problem with it. Called on the filling thread."""
        self.counters.num_masks += 1
        self.counters.mask_s += fill.total_s
        state = fill.state
        if state.error is None:
            assert state.position is not None
            state.fill, state.waiting_since_s, state.num_missed = None, None, 0
            state.num_masked, state.ahead = state.position.num_tokens, fill.ahead
            if isinstance(problem, SlowMask):
                self._refuse(state, problem)
            elif problem is not None:
                self._fail(state, problem)
        if not fill.is_awaited or fill.is_late or problem is not None or self._holds_up_others(state):
            self._wake()

    def _holds_up_others(self, state: GrammarState) -> bool:
        """Return whether other requests wait for the thread of their tenant's expensive masks."""
        waiting = (each for each in self._states.values() if each.waiting_since_s is not None and not each.is_cheap)
        return not state.is_cheap and any(each.tenant == state.tenant for each in waiting)

    def _check_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(CHECK_S, self._check)
            self._timer.daemon = True
            self._timer.start()

    def _check(self) -> None:
        """Fail the requests whose masks take or are missing for too long, or whose matchers are too large.

        Called by the timer.
        """
        with self._changed:
            self._timer = None
            for fill in self._threads.drop_overdue():
                self._refuse(fill.state, SlowMask(fill.cpu_s))
            for state in self._memory.check(self._states.values()):
                self._fail(state, ValueError("matching it takes too much memory; make it simpler or less ambiguous"))
            waiting = [state for state in self._states.values() if state.waiting_since_s is not None]
            for state in waiting:
                is_held_up = state.fill is not None or not self._threads.may_await(state)
                if is_held_up and state.has_waited(MAX_WAIT_S):
                    self._fail(state, QueueFull("masks of other requests occupy the threads; try again later"))
            if waiting or self._threads.needs_check or self._memory.num_large_bytes:
                self._check_later()
            self._changed.notify_all()
        if self._failed:
            self._wake()

    def _refuse(self, state: GrammarState, error: SlowMask) -> None:
        """Fail all requests with the same grammar and cache salt, those to come included."""
        self._compiler.refuse(state.grammar, state.cache_salt, InvalidRequest(str(error)))
        for each in self._states.values():
            if each.cache_salt == state.cache_salt and each.grammar == state.grammar:
                self._fail(each, error)

    def _note_late(self, state: GrammarState) -> None:
        """Fill the state's masks between steps from now on, if it is its own mask that takes long."""
        self.counters.num_late_masks += 1
        fill = state.fill
        if fill is None:
            return
        if fill.phase is Phase.QUEUED:
            fill.cancel()
            state.num_missed += 1
            state.note_wait()
            self._check_later()
        elif fill.phase is Phase.RUNNING and fill.is_slow:
            state.is_slow = True
            self._threads.note_late(fill)

    def _fail(self, state: GrammarState, error: BaseException) -> None:
        """Fail a request, unless it has failed or ended, and release its matcher."""
        if state.error is not None:
            return
        if isinstance(error, InvalidRequest | ValueError):
            state.error = state.grammar.invalid(str(error))
        elif isinstance(error, EngineError):
            state.error = error
        else:
            logger.error("a mask could not be filled", exc_info=error)
            state.error = EngineError("a mask of the grammar could not be filled")
        state.num_masked, state.waiting_since_s, state.position, state.fill, state.ready = -1, None, None, None, None
        self._failed.append(state)


def _nothing() -> None:
    """Ignore a call: nothing listens."""

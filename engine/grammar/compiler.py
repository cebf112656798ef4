"""Compiled grammars: a cache by content in front of a bounded number of compiling threads."""

import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path

import torch

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.grammar.base import CompiledGrammar, GrammarBackend
from baton.engine.grammar.cost import is_cheap
from baton.engine.grammar.figures import GrammarCounters
from baton.engine.grammar.forced_length import has_short_forced_texts
from baton.engine.grammar.grammar import Grammar
from baton.engine.grammar.mask_fill import MAX_FILL_S, SlowMask
from baton.engine.grammar.threads import DaemonThreads
from baton.engine.grammar.trial import Trial, Trials
from baton.extras import XGRAMMAR

logger = logging.getLogger(__name__)

NUM_THREADS = 2
MAX_WAITING = 64  # grammars
MAX_CACHE_BYTES = 256 << 20
MAX_CACHED = 1024  # grammars, those that failed included
COMPILE_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 60.0  # for a thread
SLOW_FILL_S = 0.05  # time of a grammar's first mask from which its masks are filled apart from the other requests'


@dataclass(frozen=True, slots=True)
class ReadyGrammar:
    """A compiled grammar that allows at least one output."""

    compiled: CompiledGrammar
    is_slow: bool  # its first mask took more than SLOW_FILL_S
    is_cheap: bool  # to compile; see `cost`
    has_short_forced_texts: bool  # see `forced_length`


@dataclass(slots=True)
class _Entry:
    """A grammar in the cache, which may not be compiled yet."""

    ready: "Future[ReadyGrammar]"
    timer: threading.Timer | None = None
    num_bytes: int = 0  # of the source, and of the compiled grammar once it exists

    def start_timer(self, timeout_s: float, expire: Callable[[], None]) -> None:
        """Replace the timer."""
        self.stop_timer()
        self.timer = threading.Timer(timeout_s, expire)
        self.timer.daemon = True
        self.timer.start()

    def stop_timer(self) -> None:
        """Stop the timer, if any."""
        if self.timer is not None:
            self.timer.cancel()


_Key = tuple[str, Grammar]  # with the cache salt


class GrammarCompiler:
    """Compiler of grammars with its threads and cache: it compiles each content once while that is cached."""

    def __init__(
        self,
        make_backend: Callable[[], GrammarBackend],
        make_trial: Callable[[], Trial],
        vocab_size: int,
        timeout_s: float = COMPILE_TIMEOUT_S,
    ) -> None:
        """make_backend: called on a compiling thread at the first grammar. make_trial: for what may be expensive."""
        self._make_backend = make_backend
        self._trials = Trials(make_trial)
        self.num_words = -(-vocab_size // 32)  # int32 elements of a mask
        self._timeout_s = timeout_s
        self._threads = DaemonThreads("grammar compiler", NUM_THREADS, MAX_WAITING)
        self._lock = threading.Lock()  # guards everything below
        self._backend_lock = threading.Lock()
        self._backend: GrammarBackend | None = None
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self.counters = GrammarCounters()

    @property
    def backend(self) -> GrammarBackend:
        """The backend; exists once a grammar is compiled."""
        assert self._backend is not None
        return self._backend

    def compile(self, grammar: Grammar, cache_salt: str = "") -> "Future[ReadyGrammar]":
        """Return the future of a compiled grammar; its exception is InvalidRequest, QueueFull or EngineError.

        Only requests with the same cache salt share compiled grammars: others cannot learn from the time which exist.
        Raises InvalidRequest if the backend is not installed, QueueFull if too many grammars wait for a thread.
        """
        key = (cache_salt, grammar)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self.counters.num_cache_hits += 1
                return entry.ready
            if not XGRAMMAR.is_installed:
                raise InvalidRequest(XGRAMMAR.missing("structured output"))
            entry = _Entry(Future(), num_bytes=sys.getsizeof(grammar.source))
            busy = QueueFull("the threads that compile grammars are busy; try again later")
            entry.start_timer(WAIT_TIMEOUT_S, lambda: self._fail(key, entry, busy))
            try:
                self._threads.submit(lambda: self._compile(key, entry))
            except QueueFull:
                entry.stop_timer()
                raise
            self._add(key, entry)
        return entry.ready

    def refuse(self, grammar: Grammar, cache_salt: str, error: InvalidRequest) -> None:
        """Fail later requests with a grammar that was compiled."""
        entry = _Entry(Future(), num_bytes=sys.getsizeof(grammar.source))
        entry.ready.set_exception(error)
        key = (cache_salt, grammar)
        with self._lock:
            if (old := self._entries.pop(key, None)) is not None:
                self._num_bytes -= old.num_bytes
            self._add(key, entry)

    def close(self) -> None:
        """End the processes for trials."""
        self._trials.close()

    def _compile(self, key: _Key, entry: _Entry) -> None:
        """Compile on a thread."""
        if entry.ready.done():  # it waited for too long
            return
        entry.stop_timer()
        _, grammar = key
        try:
            _check(grammar)
            started_at_s = time.monotonic()
            cheap = is_cheap(grammar)
            if not cheap:
                self._trials.run(grammar, self._timeout_s)
            backend = self._shared_backend()
            slow = QueueFull("the grammar is still being compiled; try again later")
            entry.start_timer(self._timeout_s, lambda: self._fail(key, entry, slow))
            compiled = backend.compile(grammar)
            ready = ReadyGrammar(
                compiled, self._first_mask_s(compiled) > SLOW_FILL_S, cheap, has_short_forced_texts(grammar)
            )
            self._finish(key, entry, ready, time.monotonic() - started_at_s)
        except EngineError as error:
            self._fail(key, entry, error)
        except Exception:  # a fault of the library or of this code, not of the request
            logger.exception("a grammar could not be compiled")
            self._fail(key, entry, EngineError("a grammar could not be compiled"))
        finally:
            entry.stop_timer()

    def _shared_backend(self) -> GrammarBackend:
        with self._backend_lock:
            if self._backend is None:
                self._backend = self._make_backend()
            return self._backend

    def _first_mask_s(self, compiled: CompiledGrammar) -> float:
        """Return the CPU time of the first mask. Raises InvalidRequest if it allows no output or takes long.

        It takes over MAX_FILL_S for no grammar that is cheap or has passed its trial, except on slow machines.
        """
        row = torch.zeros(self.num_words, dtype=torch.int32)
        started_s = time.thread_time()
        compiled.matcher(frozenset({0})).fill(row)
        duration_s = time.thread_time() - started_s
        if duration_s > MAX_FILL_S:
            raise InvalidRequest(str(SlowMask(duration_s)))
        if not row.any():
            raise InvalidRequest("it matches no text")
        return duration_s

    def _finish(self, key: _Key, entry: _Entry, ready: ReadyGrammar, duration_s: float) -> None:
        """Give the grammar to the waiting requests, or to later ones if these have failed in the meantime."""
        with self._lock:
            self.counters.num_compiles += 1
            self.counters.compile_s += duration_s
            if self._entries.get(key) is entry:
                entry.num_bytes += ready.compiled.num_bytes
                self._num_bytes += ready.compiled.num_bytes
            elif key not in self._entries:
                late = _Entry(Future(), num_bytes=entry.num_bytes + ready.compiled.num_bytes)
                late.ready.set_result(ready)
                self._add(key, late)
        _resolve(entry, ready)
        with self._lock:
            self._evict()

    def _fail(self, key: _Key, entry: _Entry, error: EngineError) -> None:
        """Fail the waiting requests. An invalid grammar stays in the cache, so that it is not compiled again."""
        with self._lock:
            if not isinstance(error, InvalidRequest) and self._entries.get(key) is entry:
                del self._entries[key]
                self._num_bytes -= entry.num_bytes
        # The cache keeps the error: without these it would keep the stack's variables, such as the parsed schema.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        _resolve(entry, error)

    def _add(self, key: _Key, entry: _Entry) -> None:
        self._entries[key] = entry
        self._num_bytes += entry.num_bytes
        self._evict()

    def _evict(self) -> None:
        """Remove entries in order of their last use until the rest fits. Those being compiled stay."""
        for key, entry in list(self._entries.items()):
            if self._num_bytes <= MAX_CACHE_BYTES and len(self._entries) <= MAX_CACHED:
                return
            if entry.ready.done():
                del self._entries[key]
                self._num_bytes -= entry.num_bytes


def _check(grammar: Grammar) -> None:
    """Raise InvalidRequest if the grammar exceeds a bound or cannot be enforced.

    The router has validated it, but other clients of a worker may not have.
    """
    try:
        grammar.check()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def make_xgrammar_backend(directory: Path, vocab_size: int, eos_token_ids: frozenset[int]) -> GrammarBackend:
    """Return xgrammar's backend. Raises InvalidRequest if the directory has no usable tokenizer."""
    from baton.engine.grammar.xgrammar_backend import XGrammarBackend  # optional, and takes seconds to import

    return XGrammarBackend(str(directory), vocab_size, eos_token_ids)


def _resolve(entry: _Entry, result: ReadyGrammar | EngineError) -> None:
    try:
        if isinstance(result, EngineError):
            entry.ready.set_exception(result)
        else:
            entry.ready.set_result(result)
    except InvalidStateError:
        return  # the other of the compiling thread and the timer was first

"""Compiled grammars: a cache by content in front of a bounded number of compiling threads.

Grammars that may be expensive have separate threads, of which one tenant never takes all.
"""

import logging
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

import torch

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.grammar.base import CompiledGrammar, GrammarBackend
from baton.engine.grammar.cost import is_cheap
from baton.engine.grammar.daemon_threads import DaemonThreads
from baton.engine.grammar.figures import GrammarCounters
from baton.engine.grammar.forced_length import has_short_forced_texts
from baton.engine.grammar.grammar import Grammar
from baton.engine.grammar.mask_fill import MAX_FILL_S, SLOW_FILL_S, SlowMask
from baton.engine.grammar.trial import Trial, Trials
from baton.extras import XGRAMMAR

logger = logging.getLogger(__name__)

NUM_THREADS = 2
MAX_CHEAP = 1  # grammars of a tenant that are compiled at the same time
NUM_EXPENSIVE_THREADS = 3
MAX_EXPENSIVE = 2  # the same for those that may be expensive
MAX_REPLACED = 4  # threads whose compile goes on after its requests have failed
MAX_REPLACED_OF_TENANT = 2
MAX_WAITING = 128  # grammars, half of them of one tenant
MAX_CACHE_BYTES = 256 << 20
MAX_COMPILED_BYTES = 128 << 20  # of one grammar
MAX_USED_BYTES = 512 << 20  # of grammars that running requests use, but for which the cache has no room
MAX_CACHED = 1024  # grammars, those that failed included
COMPILE_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 60.0  # for a thread


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ReadyGrammar:
    """A compiled grammar that allows at least one output."""

    compiled: CompiledGrammar
    is_slow: bool  # its first mask took more than SLOW_FILL_S
    is_cheap: bool  # to compile; see `cost`
    has_short_forced_texts: bool  # see `forced_length`
    tenant: str  # first tenant that requested it


@dataclass(slots=True, eq=False)
class _Entry:
    """A grammar in the cache, which may not be compiled yet."""

    ready: "Future[ReadyGrammar]"
    tenant: str = ""  # first tenant that requested it
    compiled: ReadyGrammar | None = None
    timer: threading.Timer | None = None
    num_bytes: int = 0  # of the source, and of the compiled grammar once it exists
    thread_id: int = 0  # thread of this process that compiles it
    is_overdue: bool = False  # it still has a thread, although its requests have failed
    is_replaced: bool = False  # its thread

    def start_timer(self, timeout_s: float, expire: Callable[[], None]) -> None:
        """Replace the timer."""
        self.stop_timer()
        self.timer = threading.Timer(timeout_s, expire)
        self.timer.daemon = True
        self.timer.start()

    def stop_timer(self) -> None:
        """Stop the timer, if any. It refers to this entry, and so to a grammar that may be large."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()


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
        self._threads = DaemonThreads("grammar compiler", NUM_THREADS, MAX_WAITING, MAX_CHEAP)
        self._expensive = DaemonThreads("compiler of large grammars", NUM_EXPENSIVE_THREADS, MAX_WAITING, MAX_EXPENSIVE)
        self._lock = threading.Lock()  # guards everything below
        self._backend_lock = threading.Lock()
        self._backend: GrammarBackend | None = None
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self._compiling: dict[_Entry, DaemonThreads] = {}  # what the threads compile
        self._alive: WeakSet[ReadyGrammar] = WeakSet()  # in the cache, or used by requests
        self.counters = GrammarCounters()

    @property
    def backend(self) -> GrammarBackend:
        """The backend; exists once a grammar is compiled."""
        assert self._backend is not None
        return self._backend

    def compile(self, grammar: Grammar, cache_salt: str = "", tenant: str = "") -> "Future[ReadyGrammar]":
        """Return the future of a compiled grammar; its exception is InvalidRequest, QueueFull or EngineError.

        Only requests with the same cache salt share compiled grammars: others cannot learn from the time which exist.
        Tenants take turns. Raises InvalidRequest if the backend is not installed, QueueFull if too many grammars wait
        for a thread.
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
            entry = _Entry(Future(), tenant, num_bytes=sys.getsizeof(grammar.source))
            busy = QueueFull("the threads that compile grammars are busy; try again later")
            entry.start_timer(WAIT_TIMEOUT_S, lambda: self._fail(key, entry, busy))
            try:
                self._threads.submit(lambda: self._begin(key, entry), tenant)
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

    def _begin(self, key: _Key, entry: _Entry) -> None:
        """Compile a cheap grammar, on a thread; hand others on to the threads for them."""
        _, grammar = key
        with self._failing(key, entry):
            _check(grammar)
            if is_cheap(grammar):
                self._compile(key, entry, self._threads)
            else:
                self._expensive.submit(lambda: self._try(key, entry), entry.tenant)

    def _try(self, key: _Key, entry: _Entry) -> None:
        """Try an expensive grammar in a process, and compile it then; on a thread."""
        if entry.ready.done():  # it waited for too long
            return
        entry.stop_timer()
        with self._failing(key, entry):
            started_at_s = time.monotonic()
            self._trials.run(key[1], self._timeout_s)
            self._compile(key, entry, self._expensive, time.monotonic() - started_at_s)

    def _compile(self, key: _Key, entry: _Entry, threads: DaemonThreads, trial_s: float | None = None) -> None:
        """Compile on one of the threads."""
        if entry.ready.done():
            return
        _, grammar = key
        backend = self._shared_backend()
        with self._lock:
            self._check_room(entry.tenant)
            entry.thread_id = threading.get_ident()
            self._compiling[entry] = threads
        try:
            entry.start_timer(self._timeout_s, lambda: self._expire(key, entry))
            started_at_s = time.monotonic()
            compiled = backend.compile(grammar)
            if compiled.num_bytes > MAX_COMPILED_BYTES:
                raise InvalidRequest(f"compiled, it takes over {MAX_COMPILED_BYTES >> 20} MiB; simplify it")
            is_slow = self._first_mask_s(compiled) > SLOW_FILL_S
            ready = ReadyGrammar(compiled, is_slow, trial_s is None, has_short_forced_texts(grammar), entry.tenant)
            self._finish(key, entry, ready, time.monotonic() - started_at_s + (trial_s or 0.0))
        finally:
            entry.stop_timer()
            with self._lock:
                del self._compiling[entry]
                self._replace_overdue()

    def _check_room(self, tenant: str) -> None:
        """Raise QueueFull if a tenant's grammars outside the cache exceed its share of the memory for them.

        The share is half, or if all take too much, an equal part. Each compile counts as a grammar of the largest size.
        """
        used = Counter({tenant: 0})
        for entry in self._compiling:
            used[entry.tenant] += MAX_COMPILED_BYTES
        cached = {entry.compiled for entry in self._entries.values()}
        for ready in self._alive:
            if ready not in cached:
                used[ready.tenant] += ready.compiled.num_bytes
        num_shares = max(2, len(used)) if used.total() > MAX_USED_BYTES else 2
        if used[tenant] > MAX_USED_BYTES / num_shares:
            raise QueueFull("the compiled grammars of running requests take too much memory; try again later")

    @contextmanager
    def _failing(self, key: _Key, entry: _Entry) -> Iterator[None]:
        """Fail the waiting requests with what is raised."""
        try:
            yield
        except EngineError as error:
            entry.stop_timer()
            self._fail(key, entry, error)
        except Exception:  # a fault of the library or of this code, not of the request
            logger.exception("a grammar could not be compiled")
            entry.stop_timer()
            self._fail(key, entry, EngineError("a grammar could not be compiled"))

    def _expire(self, key: _Key, entry: _Entry) -> None:
        """Fail the requests whose grammar is still being compiled, and replace the thread. Called by the timer."""
        self._fail(key, entry, QueueFull("the grammar is still being compiled; try again later"))
        with self._lock:
            entry.is_overdue = True
            self._replace_overdue()

    def _replace_overdue(self) -> None:
        """Replace threads whose compile takes too long, as far as the bounds allow."""
        num_replaced = Counter(entry.tenant for entry in self._compiling if entry.is_replaced)
        for entry, threads in self._compiling.items():
            if not entry.is_overdue or entry.is_replaced or num_replaced.total() >= MAX_REPLACED:
                continue
            if num_replaced[entry.tenant] < MAX_REPLACED_OF_TENANT:
                threads.replace(entry.thread_id)
                entry.is_replaced = True
                num_replaced[entry.tenant] += 1

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
            self._alive.add(ready)
            if self._entries.get(key) is entry:
                entry.compiled = ready
                entry.num_bytes += ready.compiled.num_bytes
                self._num_bytes += ready.compiled.num_bytes
            elif key not in self._entries:
                late = _Entry(Future(), compiled=ready, num_bytes=entry.num_bytes + ready.compiled.num_bytes)
                late.ready.set_result(ready)
                self._add(key, late)
        _resolve(entry, ready)
        with self._lock:
            self._evict()

    def _fail(self, key: _Key, entry: _Entry, error: EngineError) -> None:
        """Fail the waiting requests. An invalid grammar stays in the cache, so that it is not compiled again.

        On a timer, the compile may have begun and started another one, which has to run on.
        """
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


def _resolve(entry: _Entry, result: ReadyGrammar | EngineError) -> None:
    try:
        if isinstance(result, EngineError):
            entry.ready.set_exception(result)
        else:
            entry.ready.set_result(result)
    except InvalidStateError:
        return  # the other of the compiling thread and the timer was first

"""Threads for compiling grammars and filling masks, and bounds on those that are occupied by masks that take long."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Full, Queue
from threading import Condition

from baton.engine.errors import QueueFull
from baton.engine.grammar.mask_fill import MAX_FILL_S, GrammarState, MaskFill, Phase, SlowMask

logger = logging.getLogger(__name__)

MIN_THREADS, MAX_THREADS = 2, 8  # for masks that a step waits for; between them half of the cores
NUM_SLOW_THREADS = 2
MAX_JOBS = 4096
MIN_ROWS_PER_JOB = 4
MAX_REPLACED = 8  # threads whose mask goes on after its request has failed
MAX_LONG = 4  # long masks of a cache salt, from which on its requests start no others
MAX_LONG_EXPENSIVE = 2  # the same for requests whose grammars are not cheap


class DaemonThreads:
    """A fixed number of threads with a bounded queue of jobs, started at the first job.

    They do not keep the process alive: a job in a library may run for long and cannot be interrupted. Its thread can be
    replaced until it ends.
    """

    def __init__(self, name: str, num_threads: int, max_queued: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._jobs: Queue[Callable[[], None]] = Queue(max_queued)
        self._lock = threading.Lock()  # guards the rest
        self._num_alive = 0  # except for those replaced
        self._num_started = 0
        self._replaced: set[int] = set()  # their ids

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job; its exception is logged. Raises QueueFull if too many jobs are waiting. Called by one thread."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            raise QueueFull(f"{self._jobs.maxsize} jobs of {self._name} are waiting; try again later") from None
        with self._lock:
            if self._num_alive < self._num_threads:
                self._start()

    def replace(self, thread_id: int) -> None:
        """Start a thread in place of one, which ends after its job. The caller bounds the number."""
        with self._lock:
            self._replaced.add(thread_id)
            self._num_alive -= 1
            self._start()

    def _start(self) -> None:
        name = f"{self._name}-{self._num_started}"
        self._num_alive += 1
        self._num_started += 1
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:  # the thread must outlive it: later jobs need the thread
                logger.exception("a job of %s failed", self._name)
            del job  # it must not keep its request alive until the next one
            with self._lock:
                if threading.get_ident() in self._replaced:
                    self._replaced.remove(threading.get_ident())
                    return


class MaskThreads:
    """Threads for masks that a step waits for, and others for slow masks. The caller's condition guards all of it.

    A mask is long if a step went on without it, or if it was dropped: its request has failed, but it cannot be
    interrupted. A thread with a dropped mask is replaced.
    """

    def __init__(
        self,
        changed: Condition,
        on_start: Callable[[], None],
        on_filled: Callable[[MaskFill, Exception | None], None],
    ) -> None:
        """on_start, on_filled: called on a thread that holds `changed`."""
        self.num_threads = min(MAX_THREADS, max(MIN_THREADS, len(os.sched_getaffinity(0)) // 2))
        self._awaited = DaemonThreads("grammar masks", self.num_threads, MAX_JOBS)
        self._slow = DaemonThreads("slow grammar masks", NUM_SLOW_THREADS, MAX_JOBS)
        self._changed = changed
        self._on_start = on_start
        self._on_filled = on_filled
        self._running: set[MaskFill] = set()  # except for those dropped
        self._long: set[MaskFill] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no mask is being filled."""
        return not self._running and not self._long

    @property
    def has_running(self) -> bool:
        """Whether a mask is being filled whose request has not failed."""
        return bool(self._running)

    @property
    def is_full(self) -> bool:
        """Whether no further thread can be replaced."""
        return self._num_replaced >= MAX_REPLACED

    @property
    def _num_replaced(self) -> int:
        return sum(fill.is_replaced for fill in self._long)

    def is_blocked(self, cache_salt: str, is_cheap: bool) -> bool:
        """Return whether long masks of the same cache salt keep a request with a new grammar from starting any."""
        if not self._long:
            return False
        num_long = sum(fill.state.cache_salt == cache_salt for fill in self._long)
        return num_long >= (MAX_LONG if is_cheap else MAX_LONG_EXPENSIVE)

    def may_await(self, state: GrammarState) -> bool:
        """Return whether a step can wait for a mask of the state."""
        if not self._long:
            return True
        num_occupied = sum(fill.is_awaited and not fill.is_replaced for fill in self._long)
        return num_occupied < self.num_threads and not self.is_blocked(state.cache_salt, state.is_cheap)

    def start_awaited(self, fills: Iterable[MaskFill]) -> None:
        """Start masks that a step waits for. Those of expensive grammars occupy one thread for each cache salt."""
        cheap: list[MaskFill] = []
        expensive: dict[str, list[MaskFill]] = {}
        for fill in sorted(fills, key=lambda fill: -fill.state.num_missed):  # so that none starves
            state = fill.state
            (cheap if state.is_cheap else expensive.setdefault(state.cache_salt, [])).append(fill)
        num_jobs = min(self.num_threads, -(-len(cheap) // MIN_ROWS_PER_JOB))
        for number in range(num_jobs):
            self.start(cheap[number::num_jobs])
        for job in expensive.values():
            self.start(job)

    def start(self, fills: Sequence[MaskFill]) -> None:
        """Start masks, one after the other. Without a place in the queue they are cancelled."""
        try:
            self._threads_of(fills[0]).submit(lambda: self._run(fills))
        except QueueFull:
            for fill in fills:
                fill.cancel()

    def note_late(self, fill: MaskFill) -> None:
        """Note that a step goes on without a running mask."""
        fill.is_late = True
        self._long.add(fill)

    def drop_overdue(self) -> list[MaskFill]:
        """Drop the masks that run for too long, and return them."""
        overdue = [fill for fill in self._running if fill.cpu_s > MAX_FILL_S]
        for fill in overdue:
            self._running.remove(fill)
            self._long.add(fill)
            fill.phase, fill.state.fill = Phase.DROPPED, None
            if not self.is_full:
                fill.is_replaced = True
                self._threads_of(fill).replace(fill.thread_id)
        return overdue

    def _threads_of(self, fill: MaskFill) -> DaemonThreads:
        return self._awaited if fill.is_awaited else self._slow

    def _run(self, fills: Sequence[MaskFill]) -> None:
        """Fill masks, on a thread."""
        for fill in fills:
            state = fill.state
            with self._changed:
                if fill.phase is Phase.CANCELLED or state.request() is None:
                    continue
                if state.error is not None or self.is_blocked(state.cache_salt, state.is_cheap):
                    fill.cancel()
                    self._changed.notify_all()
                    continue
                fill.start()
                self._running.add(fill)
                self._on_start()
                position = state.position
            problem = None
            try:
                assert position is not None
                position.advance(fill.token_ids, fill.restart_clock)
            except Exception as error:  # a ValueError is the request's problem, others are faults of the library
                problem = error
            with self._changed:
                last_s = fill.end()
                self._running.discard(fill)
                self._long.discard(fill)
                self._on_filled(fill, SlowMask(last_s) if last_s > MAX_FILL_S else problem)
                self._changed.notify_all()
            del position, problem  # the problem's traceback refers to this frame, and so to a matcher that may be large

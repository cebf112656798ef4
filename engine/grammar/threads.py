"""Threads for compiling grammars and filling masks."""

import logging
import threading
from collections.abc import Callable
from queue import Full, Queue

from baton.engine.errors import QueueFull

logger = logging.getLogger(__name__)


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
        self._num_alive = 0
        self._num_started = 0
        self._num_replaced = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job; its exception is logged. Raises QueueFull if too many jobs are waiting. Called by one thread."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            raise QueueFull(f"{self._jobs.maxsize} jobs of {self._name} are waiting; try again later") from None
        with self._lock:
            if self._num_alive < self._num_threads + self._num_replaced:
                self._start()

    def replace_one(self) -> None:
        """Start a thread in place of one whose job runs for too long. The caller bounds the number."""
        with self._lock:
            self._num_replaced += 1
            self._start()

    def end_replacement(self) -> None:
        """Let one thread end after its job: undoes `replace_one`. Called when the job that ran for too long ends."""
        with self._lock:
            self._num_replaced -= 1

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
                if self._num_alive > self._num_threads + self._num_replaced:
                    self._num_alive -= 1
                    return

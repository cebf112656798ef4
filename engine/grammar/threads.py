"""Threads for compiling grammars and filling masks."""

import logging
import threading
from collections.abc import Callable
from queue import Full, Queue

from baton.engine.errors import QueueFull

logger = logging.getLogger(__name__)


class DaemonThreads:
    """A fixed number of threads with a bounded queue of jobs, started at the first job.

    They do not keep the process alive: a job in a library may run for long and cannot be interrupted.
    """

    def __init__(self, name: str, num_threads: int, max_queued: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._jobs: Queue[Callable[[], None]] = Queue(max_queued)
        self._threads: list[threading.Thread] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job; its exception is logged. Raises QueueFull if too many jobs are waiting. Called by one thread."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            raise QueueFull(f"{self._jobs.maxsize} jobs of {self._name} are waiting; try again later") from None
        if len(self._threads) < self._num_threads:
            number = len(self._threads)
            thread = threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:  # the thread must outlive it: later jobs need the thread
                logger.exception("a job of %s failed", self._name)
            del job  # it must not keep its request alive until the next one

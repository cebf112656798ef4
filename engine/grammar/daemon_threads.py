"""Threads for calls into a library that cannot be interrupted. The owners of such jobs take turns."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from math import inf

from baton.engine.errors import QueueFull

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class DaemonThreads:
    """A fixed number of threads with a bounded queue of jobs, started as jobs arrive.

    The next job is one of the owner with the fewest running jobs; those with equally many take turns. The threads do
    not keep the process alive. One whose job does not end can be replaced until it ends.
    """

    def __init__(self, name: str, num_threads: int, max_queued: int, max_running: float = inf) -> None:
        """max_queued: an owner may have half of it. max_running: of one owner, on threads that are not replaced."""
        self._name = name
        self._num_threads = num_threads
        self._max_queued = max_queued
        self._max_running = max_running
        self._changed = threading.Condition()  # guards the rest
        self._queues: dict[str, deque[Job]] = {}  # by owner, in the order of their turns; none is empty
        self._num_queued = 0
        self._num_running: Counter[str] = Counter()  # by owner
        self._owners: dict[int, str] = {}  # of the running jobs, by the id of the thread
        self._num_alive = 0  # except for those replaced
        self._num_started = 0
        self._replaced: set[int] = set()  # their ids

    def submit(self, job: Job, owner: str = "") -> None:
        """Run a job; its exception is logged. Raises QueueFull if too many jobs are waiting."""
        with self._changed:
            queue = self._queues.get(owner, deque())
            if self._num_queued >= self._max_queued or len(queue) >= self._max_queued // 2:
                raise QueueFull(f"too many jobs of {self._name} are waiting; try again later")
            if self._num_alive < self._num_threads:
                self._start()
            queue.append(job)
            self._queues[owner] = queue
            self._num_queued += 1
            self._changed.notify()

    def replace(self, thread_id: int) -> None:
        """Start a thread in place of one with a running job, which ends after it. The caller bounds the number."""
        with self._changed:
            self._start()
            self._num_alive -= 1
            self._replaced.add(thread_id)
            self._changed.notify()  # a job of the owner may run now

    def _start(self) -> None:
        name = f"{self._name}-{self._num_started}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._num_alive += 1
        self._num_started += 1

    def _run(self) -> None:
        is_replaced = False
        while not is_replaced:
            with self._changed:
                while (owner := self._next_owner()) is None:
                    self._changed.wait()
                job = self._take(owner)
            try:
                job()
            except Exception:  # the thread must outlive it: later jobs need the thread
                logger.exception("a job of %s failed", self._name)
            del job  # it must not keep its request alive until the next one
            with self._changed:
                self._num_running -= Counter([owner])  # without the owners that have none left
                del self._owners[threading.get_ident()]
                is_replaced = threading.get_ident() in self._replaced
                self._replaced.discard(threading.get_ident())
                self._changed.notify()  # a job of the owner may run now

    def _next_owner(self) -> str | None:
        num_replaced = Counter(self._owners[thread_id] for thread_id in self._replaced)
        free = (each for each in self._queues if self._num_running[each] - num_replaced[each] < self._max_running)
        return min(free, key=self._num_running.__getitem__, default=None)

    def _take(self, owner: str) -> Job:
        queue = self._queues.pop(owner)
        job = queue.popleft()
        if queue:
            self._queues[owner] = queue  # behind the others
        self._num_queued -= 1
        self._num_running[owner] += 1
        self._owners[threading.get_ident()] = owner
        return job

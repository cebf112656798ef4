"""Threads that nobody waits for before the process ends."""

import threading
import time
from collections.abc import Callable


class EndingThreads:
    """Owns the threads that end what was given up: ending it may wait for a rank that hangs."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, end: Callable[[], None]) -> None:
        """Calls `end` on a thread of its own."""
        thread = threading.Thread(target=end, name="group-end", daemon=True)
        thread.start()
        self.add(thread)

    def add(self, thread: threading.Thread) -> None:
        """One more, which runs."""
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Gives them all together so much time."""
        deadline_s = time.monotonic() + timeout_s
        for each in self._threads:
            each.join(max(deadline_s - time.monotonic(), 0))

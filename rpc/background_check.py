"""Checks of files in a background thread: a file system that hangs stops neither the event loop nor the process."""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_WAIT_S = 0.25  # for a check; usual ones take less than a millisecond


class BackgroundCheck:
    """A check of files that runs in a daemon thread, one run at a time."""

    def __init__(self, what: str, check: Callable[[], None]) -> None:
        """`what` names the files in the log. `check` stores its result itself and raises nothing."""
        self._what = what
        self._check = check
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None  # of the latest run
        self._wait_until_s = 0.0  # on the monotonic clock

    def run(self) -> None:
        """Run the check and wait until it ends, but at most `MAX_WAIT_S` after its start. Thread-safe.

        While a run hangs, calls return at once and start no other. Its result takes effect when it ends.
        """
        with self._lock:
            ended = self._ended
            if is_new := ended is None or ended.is_set():
                ended = self._ended = self._start()
                self._wait_until_s = time.monotonic() + MAX_WAIT_S
            left_s = self._wait_until_s - time.monotonic()
        if not ended.wait(max(0.0, left_s)) and is_new:
            logger.warning("reading %s takes long; keeping the previous ones until it ends", self._what)

    def _start(self) -> threading.Event:
        """Start a run and return the event of its end."""
        ended = threading.Event()

        def run() -> None:
            try:
                self._check()
            finally:
                ended.set()

        # No executor: the interpreter waits at its end for an executor's threads, even if they hang.
        try:
            threading.Thread(target=run, name=f"check of {self._what}", daemon=True).start()
        except RuntimeError as error:  # the limit of threads is reached
            logger.warning("cannot check whether %s changed: %s", self._what, error)
            ended.set()
        return ended

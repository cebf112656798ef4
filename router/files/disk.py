"""Threads for the folder of files, which may be on a slow or remote file system."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from baton.rpc.status import Unavailable

logger = logging.getLogger(__name__)

NUM_THREADS = 4
MAX_WAITING = 256  # calls

T = TypeVar("T")


class FolderLost(Unavailable):
    """The folder cannot be read or written now."""


class Disk:
    """Owns the threads in which files are read and written."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="files")
        self._num_calls = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs to its end also if the caller is cancelled.

        Raises FolderLost for an OSError, or if too many calls wait.
        """
        if self._num_calls >= MAX_WAITING:
            raise FolderLost("too many requests wait for the files' folder; try again")
        self._num_calls += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        except OSError as error:
            logger.warning("the files' folder cannot be used: %s", error)
            raise FolderLost("the files' folder cannot be used now; the server's log has the reason") from error

    def close(self) -> None:
        """End the threads once their current calls have ended."""
        self._threads.shutdown(cancel_futures=True)

    def _ended(self, running: "asyncio.Future[T]") -> None:
        self._num_calls -= 1
        if not running.cancelled():
            running.exception()  # retrieved, if the caller was cancelled

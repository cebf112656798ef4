"""Threads for the folder of files, which may be on a slow or remote file system."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from baton.rpc.status import Unavailable

logger = logging.getLogger(__name__)

NUM_THREADS = 4
MAX_WAITING = 256  # calls

T = TypeVar("T")


class FolderLost(Unavailable):
    """The folder cannot be read or written now."""


class _Threads:
    """Threads with a bounded number of waiting calls."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix=name)
        self._num_calls = 0

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Return the future of a call. Raises FolderLost if too many calls wait."""
        if self._num_calls >= MAX_WAITING:
            raise FolderLost("too many requests wait for the files' folder; try again")
        self._num_calls += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        running.add_done_callback(self._ended)
        return running

    def close(self) -> None:
        """End the threads once their current calls have ended, which the caller does not wait for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, running: "asyncio.Future[T]") -> None:
        self._num_calls -= 1
        if not running.cancelled():
            running.exception()  # retrieved, if the caller was cancelled


class Disk:
    """Owns the threads in which files are read and written."""

    def __init__(self, name: str = "files") -> None:
        """`name`: of the threads."""
        self._threads, self._locking = _Threads(name), _Threads(f"{name}-quota")

    async def run(self, work: Callable[[], T], *, uses_quota: bool = False) -> T:
        """Return the result of `work`, which runs to its end also if the caller is cancelled.

        `uses_quota`: the work may wait for the lock of the quota, which other processes hold too, so it has its own
        threads. Raises FolderLost for an OSError, or if too many calls wait.
        """
        running = (self._locking if uses_quota else self._threads).submit(work)
        try:
            return await asyncio.shield(running)
        except OSError as error:
            logger.warning("the files' folder cannot be used: %s", error)
            raise FolderLost("the files' folder cannot be used now; the server's log has the reason") from error

    async def run_to_end(
        self, work: Callable[[], T], discard: Callable[[T], object] = lambda _: None, *, uses_quota: bool = False
    ) -> T:
        """Run `work` as `run` does, but a cancelled caller waits for its end, and `discard` gets its result."""
        running = asyncio.create_task(self.run(work, uses_quota=uses_quota))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            try:
                await settled(running)
            finally:
                if not running.cancelled() and running.exception() is None:
                    discard(running.result())
            raise

    def close(self) -> None:
        """End the threads once their current calls have ended. Does not block, however long these take."""
        self._threads.close()
        self._locking.close()


async def settled(*tasks: "asyncio.Future[Any]") -> None:
    """Wait until the tasks have ended, however; if the caller is cancelled meanwhile, raise CancelledError then."""
    cancellation: asyncio.CancelledError | None = None
    while any(not each.done() for each in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancellation = error
    for each in tasks:
        if not each.cancelled():
            each.exception()  # retrieved
    if cancellation is not None:
        raise cancellation

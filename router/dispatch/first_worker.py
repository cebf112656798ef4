"""The wait for a first decode worker of requests that were admitted before the last one left."""

import asyncio

from baton.router.workers.pool import WorkerPool

CHECK_S = 0.5  # interval of checks for the end of all waits


class FirstWorker:
    """The first decode worker of a deployment that scales to zero, and the requests that wait for it.

    Requests without a decode worker wait in the queue (`Admission`). These are the few that had left it.
    """

    def __init__(self, pool: WorkerPool, timeout_s: float | None) -> None:
        """`timeout_s`: maximum wait of a request; None: none waits."""
        self.num_waiting = 0
        self.num_live = 0  # waiting requests that are in `LiveCompletions`
        self._pool = pool
        self._timeout_s = timeout_s

    @property
    def is_missing(self) -> bool:
        """Whether no decode worker is ready."""
        return self._pool.max_model_len() is None

    async def wait(self, is_live: bool = False) -> bool:
        """Return whether a decode worker is ready, after a wait for it. Raises the error that the pool ended with.

        `is_live`: for a completion that `LiveCompletions` counts.
        """
        if not self.is_missing:
            return True
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        self.num_waiting += 1
        self.num_live += is_live
        try:
            while self.is_missing:
                left_s = 0.0 if self._timeout_s is None else begun_s + self._timeout_s - now_s()
                if left_s <= 0:
                    return False
                await self._pool.wait_change(min(left_s, CHECK_S))
        finally:
            self.num_waiting -= 1
            self.num_live -= is_live
        return True

    def end(self) -> None:
        """Let no request wait any more."""
        self._timeout_s = None

"""News of one request between the stream that brings it and the one who waits for it."""

import asyncio

from protos.worker_pb2 import RequestDelta


class Mailbox:
    """Holds at most one delta: news that nobody has taken yet merges, so a slow reader costs no queue.

    One reader at a time.
    """

    def __init__(self) -> None:
        self._pending: RequestDelta | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: RequestDelta) -> None:
        """Adds news: repeated fields append, the others win over older ones."""
        if self._pending is None:
            self._pending = delta
        else:
            self._pending.MergeFrom(delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no more news; `get` raises the error once it gave what there was."""
        self._error = error
        self._wake()

    async def get(self) -> RequestDelta:
        """The news since the last call; waits for some."""
        while self._pending is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        delta, self._pending = self._pending, None
        return delta

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

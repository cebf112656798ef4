"""What one router is still to be told."""

import asyncio
from collections.abc import AsyncIterator

from protos import worker_pb2


class RouterSession:
    """Collects news for one router; all that came since the last message goes into the next.

    What piles up for a router that does not read is bounded by the output of the requests it has here.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._deltas: list[worker_pb2.RequestDelta] = []
        self._wake = asyncio.Event()
        self._closed = False

    def add(self, delta: worker_pb2.RequestDelta) -> None:
        """News of one request."""
        self._deltas.append(delta)
        self._wake.set()

    def close(self) -> None:
        """Ends `messages`."""
        self._closed = True
        self._wake.set()

    async def messages(self) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """The stream to the router, until `close`."""
        while True:
            await self._wake.wait()
            if self._deltas:
                deltas, self._deltas = self._deltas, []
                yield worker_pb2.WorkerMessage(deltas=deltas)
            elif self._closed:
                return
            else:
                self._wake.clear()

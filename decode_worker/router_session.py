"""What one router is still to be told."""

import asyncio
import logging
from collections.abc import AsyncIterator

from baton.protos import worker_pb2

logger = logging.getLogger(__name__)

MAX_PENDING = 1 << 18  # news that a router may lag behind


class RouterSession:
    """Collects news for one router; all that came since the last message goes into the next.

    A router that lags too far behind loses its session, and with it its requests.
    """

    def __init__(self, session_id: str, router_id: str = "") -> None:
        self.session_id = session_id
        self.router_id = router_id
        self._deltas: list[worker_pb2.RequestDelta] = []
        self._wake = asyncio.Event()
        self._closed = False

    def add(self, delta: worker_pb2.RequestDelta) -> None:
        """News of one request."""
        self._deltas.append(delta)
        self._wake.set()
        if len(self._deltas) > MAX_PENDING:
            logger.warning("session %s is ended: its router does not read", self.session_id)
            self._deltas.clear()
            self.close()

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

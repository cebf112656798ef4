"""What one router is still to be told."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from baton.protos import worker_pb2
from baton.rpc.grpc_options import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 64 << 20  # of news that a router may lag behind
DELTA_BYTES = 256  # that each takes in memory, besides what it says


@dataclass(slots=True)
class _Pending:
    """The deltas of a message."""

    deltas: list[worker_pb2.RequestDelta] = field(default_factory=list)
    num_bytes: int = 0


class RouterSession:
    """Collects news for one router; all that came since the last message goes into the next, or the next few.

    A router that lags too far behind loses its session, and with it its requests.
    """

    def __init__(self, session_id: str, router_id: str = "") -> None:
        self.session_id = session_id
        self.router_id = router_id
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0  # of all of them
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()

    def add(self, delta: worker_pb2.RequestDelta) -> None:
        """News of one request; no-op once the session is closed."""
        if self._closed.is_set():
            return
        num_bytes = delta.ByteSize() + DELTA_BYTES
        if not self._pending or self._pending[-1].num_bytes + num_bytes > MAX_MESSAGE_BYTES:
            self._pending.append(_Pending())
        last = self._pending[-1]
        last.deltas.append(delta)
        last.num_bytes += num_bytes
        self._pending_bytes += num_bytes
        self._wake.set()
        if self._pending_bytes > MAX_PENDING_BYTES:
            logger.warning("session %s is ended: its router does not read", self.session_id)
            self._pending.clear()
            self.close()

    def close(self) -> None:
        """Ends `messages`."""
        self._closed.set()
        self._wake.set()

    async def wait_closed(self) -> None:
        """Return once the session is closed, even if the router has not read the last message yet."""
        await self._closed.wait()

    async def messages(self) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """The stream to the router, until `close`."""
        while True:
            await self._wake.wait()
            if self._pending:
                first = self._pending.popleft()
                self._pending_bytes -= first.num_bytes
                yield worker_pb2.WorkerMessage(deltas=first.deltas)
            elif self._closed.is_set():
                return
            else:
                self._wake.clear()

"""Fair use of a few threads: a client with many requests delays another client by at most one job."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Requests that wait for a thread, served round robin between clients."""

    def __init__(self, num_threads: int = 1) -> None:
        self._num_free = num_threads
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client, next turn first

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn and hold a thread for the context."""
        if self._num_free:
            self._num_free -= 1
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, client: str) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._pass_on()  # the turn was already assigned
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            client, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[client] = waiters
            if not waiter.cancelled():
                waiter.set_result(None)
                return
        self._num_free += 1

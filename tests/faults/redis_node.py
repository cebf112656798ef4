"""The Redis that a cluster under faults has for its registry."""

import signal
from pathlib import Path

from tests.redis_server import RedisServer


class RedisNode:
    """One Redis over all its lives; what it knew is gone with each of them."""

    role = "redis"
    name = "redis"

    def __init__(self, directory: Path) -> None:
        self._server = RedisServer(directory)

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._server.url

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._server.is_running

    async def start(self) -> None:
        """Begins a life; returns once it answers."""
        await self._server.start()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it."""
        self._server.signal(number)

    async def wait_end(self) -> int:
        """Returns once it has been killed."""
        await self._server.kill()
        return -signal.SIGKILL

    async def end(self) -> None:
        """Kills it."""
        await self._server.kill()

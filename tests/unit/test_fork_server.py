"""The server that forks the tests' processes."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE

import pytest

from tests.fork_server import ForkServer, Launcher


@pytest.mark.slow  # its server imports everything
async def test_a_cancelled_start_does_not_end_the_server() -> None:
    server = ForkServer()
    launch = Launcher(lambda: server.path, is_nested=False)
    command = (sys.executable, "-m", "baton", "--version")
    try:
        assert await (await launch(*command, stdout=PIPE)).communicate()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        start = asyncio.create_task(launch(*command, stdout=PIPE))
        await asyncio.wait([start], timeout=0.1)  # its request is sent
        start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()
        os.kill(server.pid, signal.SIGCONT)
        process = await launch(*command, stdout=PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0
        assert printed
    finally:
        server.close()

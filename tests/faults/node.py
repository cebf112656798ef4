"""One process of a cluster under faults: killed, stopped, ended, and started again at the same address."""

import os
import signal
import sys
from pathlib import Path

from deployment.process import ChildProcess, ProcessSpec
from rpc.progress import Failed, Ready

MODULES = {"router": "router", "prefill": "prefill_worker", "decode": "decode_worker"}


class Node:
    """Owns the process; its port stays the same over its lives."""

    def __init__(self, role: str, name: str, port: int, directory: Path, flags: tuple[str, ...]) -> None:
        self.role = role
        self.name = name
        self.port = port
        self.log = directory / f"{name}.log"
        self._argv = (sys.executable, "-m", MODULES[role], f"--port={port}", *flags)
        self._child: ChildProcess | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and not self._child.has_ended

    async def start(self) -> None:
        """Begins a life; returns once it is ready."""
        spec = ProcessSpec(self.name, self._argv, self.log, {"OMP_NUM_THREADS": "1"})
        self._child = await ChildProcess.start(spec)
        async for progress in self._child.progress():
            assert not isinstance(progress, Failed), f"{self.name}: {progress}"
            if isinstance(progress, Ready):
                return
        raise AssertionError(f"{self.name} ended before it was ready: {self.log.read_text()[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to a process that runs."""
        assert self._child is not None
        if not self._child.has_ended:
            os.kill(self._child.pid, number)

    async def wait_end(self) -> int:
        """Its exit status, negative for a signal."""
        assert self._child is not None
        status = await self._child.wait()
        self._child.close()
        self._child = None
        return status

    async def end(self) -> None:
        """Ends it at once, in whatever state it is."""
        if self._child is not None:
            self._child.kill()
            await self.wait_end()

    def tracebacks(self) -> str:
        """Its log, if it has an error in it that nobody expected."""
        text = self.log.read_text()
        return text if "Traceback (most recent call last)" in text else ""

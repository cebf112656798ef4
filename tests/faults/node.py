"""A process of a cluster under faults, which is killed, stopped, and restarted at the same address."""

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from baton.process.child import ChildProcess, ProcessSpec
from baton.process.progress import Failed, Ready

MODULES = {"router": "baton.router", "prefill": "baton.prefill_worker", "decode": "baton.decode_worker"}


class Node(Protocol):
    """A process of a role, across restarts."""

    role: str
    name: str

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        ...

    async def wait_end(self) -> int:
        """Wait for the end and return the exit status, negative for a signal."""
        ...

    async def end(self) -> None:
        """Kill the process, whatever its state."""
        ...


class BatonNode:
    """A router or a worker that keeps its port across restarts."""

    def __init__(
        self, role: str, name: str, host: str, port: int, directory: Path, flags: tuple[str, ...],
        launcher: tuple[str, ...] = (sys.executable, "-m"), env: dict[str, str] | None = None,
        grpc_port: int | None = None,
    ) -> None:  # fmt: skip
        """`launcher`: command that starts the module; `env`: added to our environment; `grpc_port`: for a router."""
        self.role = role
        self.name = name
        self.log = directory / f"{name}.log"
        self.address = f"{host}:{port}"
        self.grpc_address = f"{host}:{grpc_port}"
        grpc_flags = () if grpc_port is None else (f"--grpc-port={grpc_port}",)
        self._argv = (*launcher, MODULES[role], f"--host={host}", f"--port={port}", *grpc_flags, *flags)
        self._env = {"OMP_NUM_THREADS": "1", **(env or {})}
        self._child: ChildProcess | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and not self._child.has_ended

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        if self._child is not None:
            await self.wait_end()  # it has ended by itself
        self._child = await ChildProcess.start(ProcessSpec(self.name, self._argv, self.log, self._env))
        async for progress in self._child.progress():
            assert not isinstance(progress, Failed), f"{self.name}: {progress}"
            if isinstance(progress, Ready):
                return
        raise AssertionError(f"{self.name} ended before it was ready: {self.log.read_text()[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        assert self._child is not None
        if not self._child.has_ended:
            with suppress(ProcessLookupError):  # it has ended, but was not reaped yet
                os.kill(self._child.pid, number)

    async def wait_end(self) -> int:
        """Wait for the end and return the exit status, negative for a signal."""
        assert self._child is not None
        status = await self._child.wait()
        self._child.close()
        self._child = None
        return status

    async def end(self) -> None:
        """Kill the process, whatever its state."""
        if self._child is not None:
            self._child.kill()
            await self.wait_end()

    def limit_files(self, num_bytes: int) -> None:
        """Limit the size of files that the process writes, including its log; negative: unlimited."""
        if self._child is not None and not self._child.has_ended:
            resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

    def tracebacks(self) -> str:
        """Return the log if it has an unexpected error, otherwise an empty string."""
        text = self.log.read_text()
        return text if "Traceback (most recent call last)" in text else ""

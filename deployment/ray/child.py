"""Process of a replica, from start to shutdown."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from baton.process.child import ChildProcess, ProcessSpec, log_tail
from baton.process.progress import Failed, Ready, Waiting

TAIL_LINES = 12
LAST_REPORT_S = 1.0  # after the process has ended, to read the rest of its progress reports


class NotReady(Exception):
    """The process failed to start; the text has its own error, if it reported one."""


class ReplicaChild:
    """Owner of a replica's process."""

    def __init__(self, spec: ProcessSpec, child: ChildProcess, on_waiting: Callable[[str], None] | None = None) -> None:
        """`on_waiting` is called with the address at which the process waits for other nodes, if it does."""
        self._spec = spec
        self._on_waiting = on_waiting
        self._child = child
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._failure: str | None = None  # reported by the process
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        spec: ProcessSpec,
        timeout_s: float,
        on_waiting: Callable[[str], None] | None = None,
        lost: "asyncio.Future[str] | None" = None,
    ) -> "ReplicaChild":
        """Start the process and wait until it is ready. Raises NotReady, also with the reason of `lost`."""
        started = cls(spec, await ChildProcess.start(spec), on_waiting)
        ended = asyncio.create_task(started.wait())
        waits = [started._ready, ended, *([lost] if lost is not None else [])]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if lost is not None and lost.done():
                raise NotReady(f"{spec.name} cannot serve: {lost.result()}{started._tail()}")
            if ended.done():
                raise NotReady(f"{spec.name} cannot serve: {ended.result()}{started._tail()}")
            if not started._ready.done():
                raise NotReady(f"{spec.name} was not ready after {timeout_s:g} s{started._tail()}")
        except BaseException:
            await started.kill()
            raise
        finally:
            ended.cancel()
        return started

    @property
    def address(self) -> str:
        """Address at which it serves."""
        return self._ready.result()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    async def _follow(self) -> None:
        async for progress in self._child.progress():
            if isinstance(progress, Ready) and not self._ready.done():
                self._ready.set_result(progress.address)
            elif isinstance(progress, Waiting) and self._on_waiting is not None:
                self._on_waiting(progress.address)
            elif isinstance(progress, Failed):
                self._failure = progress.message

    async def wait(self) -> str:
        """Wait until it ends, kill its child processes, and return the error that it reported, or how it ended."""
        await self._child.wait()
        self._child.kill()  # the rest of its process group, such as a stopped rank
        await asyncio.wait([self._following], timeout=LAST_REPORT_S)
        return self._failure or self._child.describe_end()

    def watch(self, on_death: Callable[[str], None]) -> asyncio.Task[None]:
        """Return a task that calls `on_death` with the reason when the process ends. Cancel it before ending it."""

        async def report() -> None:
            on_death(await self.wait())

        return asyncio.create_task(report(), name="watch")

    def _tail(self) -> str:
        path = self._spec.log_path
        return f"\n{log_tail(path, TAIL_LINES)}\nIts log: {path}" if path is not None else ""

    async def end(self, timeout_s: float) -> None:
        """Let it drain and end (SIGTERM), and kill it after `timeout_s`."""
        self._child.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._child.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill it and its child processes."""
        self._child.kill()
        await self._child.wait()
        self._following.cancel()
        self._child.close()

"""The process of a replica, from its start to its end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from baton.process.child import ChildProcess, ProcessSpec, log_tail
from baton.process.progress import Failed, Ready

TAIL_LINES = 12
LAST_NEWS_S = 1.0  # after a process's end, for what it still wrote


class NotReady(Exception):
    """A process does not get ready; the text is its own, if it said why."""


class ReplicaChild:
    """Owns a process that was ready: hears of its death, and ends it."""

    def __init__(self, spec: ProcessSpec, child: ChildProcess) -> None:
        self._spec = spec
        self._child = child
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._failure: str | None = None  # its own words
        self._story = asyncio.create_task(self._follow())

    @classmethod
    async def start(cls, spec: ProcessSpec, timeout_s: float) -> "ReplicaChild":
        """Starts the process; returns once it is ready. Raises NotReady."""
        started = cls(spec, await ChildProcess.start(spec))
        ended = asyncio.create_task(started.wait())
        try:
            await asyncio.wait([started._ready, ended], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
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
        """Where it serves."""
        return self._ready.result()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    async def _follow(self) -> None:
        async for progress in self._child.progress():
            if isinstance(progress, Ready) and not self._ready.done():
                self._ready.set_result(progress.address)
            elif isinstance(progress, Failed):
                self._failure = progress.message

    async def wait(self) -> str:
        """Why it ended, once it has, in its own words or ours."""
        await self._child.wait()
        await asyncio.wait([self._story], timeout=LAST_NEWS_S)
        return self._failure or self._child.describe_end()

    def watch(self, on_death: Callable[[str], None]) -> asyncio.Task[None]:
        """Has its end told; who ends it himself cancels the task before."""

        async def tell() -> None:
            on_death(await self.wait())

        return asyncio.create_task(tell(), name="watch")

    def _tail(self) -> str:
        path = self._spec.log_path
        return f"\n{log_tail(path, TAIL_LINES)}\nIts log: {path}" if path is not None else ""

    async def end(self, timeout_s: float) -> None:
        """Has it drain and end (SIGTERM), and kills it if it has not ended after `timeout_s`."""
        self._child.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._child.wait(), timeout_s)
        await self.kill()

    async def kill(self) -> None:
        """Ends it at once, and whatever it started; there is nothing left of it afterwards."""
        self._child.kill()
        await self._child.wait()
        self._story.cancel()
        self._child.close()

"""Keeps one process running over its lives."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from baton.deployment.events import Died, Listener, Progressed, Started
from baton.rpc.child_process import ChildProcess, ProcessSpec, describe_exit, log_tail
from baton.rpc.progress import Failed, Ready

TAIL_LINES = 12
LAST_NEWS_S = 1.0  # after a process's end, for what it still wrote


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a process that died is started again, and when not."""

    max_early_deaths: int = 3  # in a row, before it was ready
    first_delay_s: float = 0.2
    max_delay_s: float = 10.0
    stable_after_s: float = 30.0  # a life this long makes the next delay the first one again

    def delay_s(self, num_deaths: int) -> float:
        """Wait before the next start, doubled with each of `num_deaths` (1 or more) in a row."""
        return float(min(self.first_delay_s * 2 ** min(num_deaths - 1, 30), self.max_delay_s))


class GaveUp(Exception):
    """A process does not get ready; the text says why and where its log is."""


@dataclass(frozen=True, slots=True)
class Life:
    """How one life of a process went."""

    status: int
    was_ready: bool
    lasted_s: float
    failure: str | None  # its own words


class Supervisor:
    """Owns one process: starts it, starts it again when it dies, ends it."""

    def __init__(self, spec: ProcessSpec, policy: RestartPolicy, listener: Listener) -> None:
        self.spec = spec
        self._policy = policy
        self._listener = listener
        self._child: ChildProcess | None = None
        self._was_ready = False  # of this life
        self._failure: str | None = None  # of this life, in the process's words
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self) -> None:
        """Returns after `stop`. Raises GaveUp if the process says at its first start why it cannot serve, or dies
        `max_early_deaths` times in a row before it is ready."""
        self._ended.clear()
        try:
            await self._lives()
        finally:
            self._ended.set()

    async def _lives(self) -> None:
        num_deaths = num_early_deaths = num_lives = 0
        ever_ready = False
        while not self._stopping.is_set():
            num_lives += 1
            life = await self._live(num_lives)
            if self._stopping.is_set():
                return
            ever_ready = ever_ready or life.was_ready
            num_early_deaths = 0 if life.was_ready else num_early_deaths + 1
            num_deaths = 1 if life.lasted_s >= self._policy.stable_after_s else num_deaths + 1
            if num_early_deaths >= self._policy.max_early_deaths or (life.failure and not ever_ready):
                raise GaveUp(self._explain(life, num_early_deaths))
            delay_s = self._policy.delay_s(num_deaths)
            self._listener(Died(self.spec.name, life.failure or describe_exit(life.status), delay_s))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _live(self, num: int) -> Life:
        started_s = time.monotonic()
        child = self._child = await ChildProcess.start(self.spec)
        story = asyncio.create_task(self._follow(child))
        try:
            self._listener(Started(self.spec.name, num, child.pid))
            if self._stopping.is_set():  # while it was being started, so that `stop` could not know it
                child.kill()
            status = await child.wait()
            # A process of its own that it left behind may hold the pipe open: no reason to wait for long.
            await asyncio.wait([story], timeout=LAST_NEWS_S)
        finally:
            self._child = None
            child.kill()
            await child.wait()
            story.cancel()
            child.close()
        if story.done() and not story.cancelled():
            story.result()
        return Life(status, self._was_ready, time.monotonic() - started_s, self._failure)

    async def _follow(self, child: ChildProcess) -> None:
        self._was_ready, self._failure = False, None
        async for progress in child.progress():
            self._was_ready = self._was_ready or isinstance(progress, Ready)
            self._failure = progress.message if isinstance(progress, Failed) else self._failure
            self._listener(Progressed(self.spec.name, progress))

    def _explain(self, life: Life, num_early_deaths: int) -> str:
        name, log = self.spec.name, self.spec.log_path
        where = f"\nIts log: {log}" if log is not None else ""
        if life.failure is not None:
            return f"{name} cannot serve: {life.failure}{where}"
        times = f"{num_early_deaths} times in a row" if num_early_deaths > 1 else "once"
        tail = f"\n{log_tail(log, TAIL_LINES)}" if log is not None else ""
        return f"{name} died {times} before it was ready; it {describe_exit(life.status)}.{tail}{where}"

    async def stop(self, timeout_s: float) -> None:
        """Ends the process: SIGTERM, and SIGKILL if it has not ended after `timeout_s`. `run` returns afterwards."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

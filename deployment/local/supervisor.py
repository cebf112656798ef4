"""Keeps one process running over its lives."""

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from baton.deployment.local.events import Died, Listener, Progressed, Started, Warned
from baton.process.child import OOM_KILLED, ChildProcess, ProcessSpec, log_tail
from baton.process.progress import HEARTBEAT_S, Alive, Failed, Ready


class HeartbeatWatch:
    """Wakes of the supervisor since the last heartbeat of one life of a process."""

    def __init__(self, timeout_s: float) -> None:
        """A process may be silent for `timeout_s`; 0: for any time."""
        self._max_missed = max(1, math.ceil(timeout_s / HEARTBEAT_S)) if timeout_s else math.inf
        self._num_missed: float = -math.inf  # it is starting, which may take any time

    def note(self) -> None:
        """Note a heartbeat, the first of which is that the process is ready."""
        self._num_missed = 0

    async def wait_silence(self) -> None:
        """Return once the process was silent for too long after its first heartbeat."""
        while self._num_missed < self._max_missed:
            await asyncio.sleep(HEARTBEAT_S)
            self._num_missed += 1


TAIL_LINES = 12
LAST_NEWS_S = 1.0  # after a process's end, for what it still wrote
DUMP_S = 0.5  # for a process that stands still to write its stacks, before it is killed


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a process that died is started again, and when a cluster that was never ready ends because of it.

    A life that served for `stable_after_s` resets the counts, but not that of kills by the kernel's out-of-memory
    killer. Requests may need minutes to fill the memory again, so this count needs `oom_stable_after_s`. Processes
    that another program ends while they serve are started again as often as that happens.
    """

    max_early_deaths: int = 3  # in a row, before it was ready
    max_deaths: int = 8  # in a row, by themselves
    max_oom_kills: int = 3  # in a row, by the kernel's out-of-memory killer
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    stable_after_s: float = 60.0
    oom_stable_after_s: float = 600.0

    def delay_s(self, num_deaths: int) -> float:
        """Return the wait before the next start, doubled with each of `num_deaths` (1 or more) in a row."""
        return float(min(self.first_delay_s * 2 ** min(num_deaths - 1, 30), self.max_delay_s))

    def is_exceeded(self, deaths: "Deaths") -> bool:
        """Return whether restarts do not help. A supervisor that is not persistent starts the process no more."""
        return (
            deaths.num_early >= self.max_early_deaths
            or deaths.num_unstable >= self.max_deaths
            or deaths.num_oom >= self.max_oom_kills
        )


class GaveUp(Exception):
    """A process does not get ready; the text says why and where its log is."""


@dataclass(frozen=True, slots=True)
class Life:
    """How one life of a process went."""

    end: str  # in words
    served_s: float | None  # from ready to its end; None: it was never ready
    failure: str | None  # its own words
    is_oom: bool  # the kernel's out-of-memory killer ended it, or a rank of it
    is_outside: bool = False  # another program ended it


@dataclass(frozen=True, slots=True)
class Deaths:
    """Numbers of deaths in a row."""

    num_short: int = 0  # after lives that were not long enough to be stable
    num_unstable: int = 0  # of these, not ended by another program
    num_early: int = 0  # before the process was ready
    num_oom: int = 0  # by the kernel's out-of-memory killer

    @property
    def in_a_row(self) -> int:
        """Deaths for which the next start waits, 1 at least."""
        return max(1, self.num_short, self.num_oom)

    def with_one(self, life: Life, policy: RestartPolicy) -> "Deaths":
        """Return the counts after one more death."""
        served_s = life.served_s or 0.0
        num_oom = 0 if served_s >= policy.oom_stable_after_s else self.num_oom
        is_stable = served_s >= policy.stable_after_s
        return Deaths(
            num_short=0 if is_stable else self.num_short + 1,
            num_unstable=0 if is_stable else self.num_unstable + (not life.is_outside),
            num_early=self.num_early + 1 if life.served_s is None else 0,
            num_oom=num_oom + 1 if life.is_oom else 0,
        )


class Supervisor:
    """Owner of one process: starts it, starts it again when it dies, ends it when it is silent or no longer needed."""

    def __init__(self, spec: ProcessSpec, policy: RestartPolicy, listener: Listener) -> None:
        self.spec = spec
        self._policy = policy
        self._listener = listener
        self._child: ChildProcess | None = None
        self._ready_s: float | None = None  # of this life, monotonic clock
        self._failure: str | None = None  # of this life, in the process's words
        self._heartbeats = HeartbeatWatch(0)  # of this life
        self._is_persistent = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    def persist(self) -> None:
        """Start the process again as often as it dies from now on, whatever the reason: the cluster has served."""
        self._is_persistent = True

    async def run(self) -> None:
        """Returns after `stop`. Unless it is persistent, raises GaveUp if the process says at its first start why it
        cannot serve, or dies as often in a row as the policy allows."""
        self._ended.clear()
        try:
            await self._lives()
        finally:
            self._ended.set()

    async def _lives(self) -> None:
        deaths, num_lives, ever_ready = Deaths(), 0, False
        while not self._stopping.is_set():
            num_lives += 1
            life = await self._live(num_lives)
            if self._stopping.is_set():
                return
            ever_ready = ever_ready or life.served_s is not None
            was_exceeded = self._policy.is_exceeded(deaths)
            deaths = deaths.with_one(life, self._policy)
            if self._policy.is_exceeded(deaths) or (life.failure and not ever_ready):
                if not self._is_persistent:
                    raise GaveUp(self._explain(life, deaths))
                if not was_exceeded:
                    self._listener(Warned(self.spec.name, self._explain(life, deaths)))
            delay_s = self._policy.delay_s(deaths.in_a_row)
            self._listener(Died(self.spec.name, life.end, delay_s, deaths.in_a_row))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _live(self, num: int) -> Life:
        try:
            child = self._child = await self._start()
        except OSError as error:  # too many processes or open files: it may pass
            if not self._is_persistent:
                raise
            return Life(f"could not be started: {error}", None, None, is_oom=False)
        self._heartbeats = HeartbeatWatch(self.spec.heartbeat_timeout_s)
        self._ready_s, self._failure = None, None
        story = asyncio.create_task(self._follow(child))
        watching = asyncio.create_task(self._end_silent(child))
        try:
            self._listener(Started(self.spec.name, num, child.pid))
            if self._stopping.is_set():  # while it was being started, so that `stop` could not know it
                child.kill()
            await child.wait()
            # A process of its own that it left behind may hold the pipe open: no reason to wait for long.
            await asyncio.wait([story], timeout=LAST_NEWS_S)
        finally:
            self._child = None
            child.kill()
            await child.wait()
            story.cancel()
            watching.cancel()
            child.close()
        if story.done() and not story.cancelled():
            story.result()
        served_s = None if self._ready_s is None else time.monotonic() - self._ready_s
        end = self._failure or child.describe_end()
        is_outside = self._failure is None and child.was_ended_from_outside
        return Life(end, served_s, self._failure, OOM_KILLED in end, is_outside)

    async def _start(self) -> ChildProcess:
        """Start the process. Raises OSError. A persistent one starts without its log if that cannot be written."""
        try:
            return await ChildProcess.start(self.spec)
        except OSError as error:
            if not self._is_persistent or self.spec.log_path is None:
                raise
            child = await ChildProcess.start(replace(self.spec, log_path=None))
            self._listener(Warned(self.spec.name, f"writes here and not to its log: {error}"))
            return child

    async def _follow(self, child: ChildProcess) -> None:
        async for progress in child.progress():
            if isinstance(progress, Alive | Ready):
                self._heartbeats.note()
            if isinstance(progress, Alive):
                continue
            if isinstance(progress, Ready) and self._ready_s is None:
                self._ready_s = time.monotonic()
            self._failure = progress.message if isinstance(progress, Failed) else self._failure
            self._listener(Progressed(self.spec.name, progress))

    async def _end_silent(self, child: ChildProcess) -> None:
        """Kill the process once it sends no more heartbeats: the kernel still gives connections to its port."""
        await self._heartbeats.wait_silence()
        if self._stopping.is_set():
            return
        limit_s = self.spec.heartbeat_timeout_s
        self._failure = f"was killed because it was stopped or stood still for over {limit_s:g} s"
        child.dump_stacks()
        await asyncio.sleep(DUMP_S)
        child.kill()

    def _explain(self, life: Life, deaths: Deaths) -> str:
        name, log = self.spec.name, self.spec.log_path
        where = f"\nIts log: {log}" if log is not None else ""
        tail = f"\n{log_tail(log, TAIL_LINES)}" if log is not None else ""
        if deaths.num_oom >= self._policy.max_oom_kills:
            return (
                f"{name} {life.end} {deaths.num_oom} times in a row. Give the KV caches less memory "
                f"(--kv-cache-memory-bytes), start fewer workers, or serve a smaller model.{tail}{where}"
            )
        if life.failure is not None and deaths.num_early:
            return f"{name} cannot serve: {life.failure}{where}"
        if deaths.num_early >= self._policy.max_early_deaths:
            times = f"{deaths.num_early} times in a row" if deaths.num_early > 1 else "once"
            return f"{name} died {times} before it was ready; it {life.end}.{tail}{where}"
        return (
            f"{name} died {deaths.num_unstable} times in a row, each time after less than "
            f"{self._policy.stable_after_s:g} s of service; the last time it {life.end}.{tail}{where}"
        )

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


async def end_all(stages: Sequence[Sequence[Supervisor]], timeout_s: float, kill: asyncio.Event) -> None:
    """Ends the processes of one stage after the other, each within `timeout_s`; all at once when `kill` is set."""

    async def stop() -> None:
        for stage in stages:
            await asyncio.gather(*(each.stop(timeout_s) for each in stage))

    ending = asyncio.create_task(stop())
    killed = asyncio.create_task(kill.wait())
    await asyncio.wait([ending, killed], return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        for supervisor in chain.from_iterable(stages):
            supervisor.kill()
    await ending
    killed.cancel()

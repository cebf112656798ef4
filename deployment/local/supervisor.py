"""Supervisor that restarts one process when it dies or hangs."""

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
    """Intervals missed since the last heartbeat of a process.

    Counts the supervisor's own wakeups, so that time in which the supervisor itself was suspended does not count.
    """

    def __init__(self, timeout_s: float) -> None:
        """Expect a heartbeat within `timeout_s`; 0: no limit."""
        self._max_missed = max(1, math.ceil(timeout_s / HEARTBEAT_S)) if timeout_s else math.inf
        self._num_missed: float = -math.inf  # no limit while it starts

    def note(self) -> None:
        """Reset on a heartbeat; readiness counts as the first."""
        self._num_missed = 0

    async def wait_silence(self) -> None:
        """Return once heartbeats have been missing for the timeout."""
        while self._num_missed < self._max_missed:
            await asyncio.sleep(HEARTBEAT_S)
            self._num_missed += 1


TAIL_LINES = 12
LAST_REPORT_S = 1.0  # after the process has ended, to read the rest of its progress reports
DUMP_S = 0.5  # for a hanging process to dump its stacks before it is killed


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Restart delays, and the limits after which a cluster that was never ready gives up.

    Serving for `stable_after_s` resets the counts, except the count of OOM kills: requests may need minutes to fill the
    memory again, so that count needs `oom_stable_after_s`. Kills by other programs do not count for `max_deaths`.
    """

    max_early_deaths: int = 3  # in a row, before the process was ready
    max_deaths: int = 8  # in a row, not caused by another program
    max_oom_kills: int = 3  # in a row, by the kernel's out-of-memory killer
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    stable_after_s: float = 60.0
    oom_stable_after_s: float = 600.0

    def delay_s(self, num_deaths: int) -> float:
        """Return the delay before the next start, which doubles with each death in a row (`num_deaths` >= 1)."""
        return float(min(self.first_delay_s * 2 ** min(num_deaths - 1, 30), self.max_delay_s))

    def is_exceeded(self, deaths: "Deaths") -> bool:
        """Whether a limit is reached. Unless it is persistent, the supervisor then gives up."""
        return (
            deaths.num_early >= self.max_early_deaths
            or deaths.num_unstable >= self.max_deaths
            or deaths.num_oom >= self.max_oom_kills
        )


class GaveUp(Exception):
    """The process failed too often; the text has the reason and the path of its log."""


@dataclass(frozen=True, slots=True)
class Life:
    """Outcome of one run of a process, from start to end."""

    end: str  # description of how it ended
    served_s: float | None  # from ready to its end; None: it was never ready
    failure: str | None  # reported by the process itself
    is_oom: bool  # the kernel's OOM killer ended it, or one of its ranks
    is_outside: bool = False  # another program ended it


@dataclass(frozen=True, slots=True)
class Deaths:
    """Counts of deaths in a row."""

    num_short: int = 0  # after less than `stable_after_s` of service
    num_unstable: int = 0  # the same, except those caused by another program
    num_early: int = 0  # before the process was ready
    num_oom: int = 0  # by the kernel's out-of-memory killer

    @property
    def in_a_row(self) -> int:
        """Number of deaths that the next delay depends on, at least 1."""
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
    """Owner of one process. Starts it, restarts it when it dies, and kills it when it stops sending heartbeats."""

    def __init__(self, spec: ProcessSpec, policy: RestartPolicy, listener: Listener) -> None:
        self.spec = spec
        self._policy = policy
        self._listener = listener
        self._child: ChildProcess | None = None
        self._ready_s: float | None = None  # when the current process became ready, monotonic clock
        self._failure: str | None = None  # reported by the current process
        self._heartbeats = HeartbeatWatch(0)  # of the current process
        self._is_persistent = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    def persist(self) -> None:
        """Never give up from now on. Called once the cluster is ready."""
        self._is_persistent = True

    async def run(self) -> None:
        """Run the process until `stop`.

        Unless it is persistent, raises GaveUp if the process reports a failure before it was ever ready, or reaches a
        limit of the policy.
        """
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
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()

    async def _live(self, num: int) -> Life:
        try:
            child = self._child = await self._start()
        except OSError as error:  # such as too many processes or open files, which may be temporary
            if not self._is_persistent:
                raise
            return Life(f"could not be started: {error}", None, None, is_oom=False)
        self._heartbeats = HeartbeatWatch(self.spec.heartbeat_timeout_s)
        self._ready_s, self._failure = None, None
        following = asyncio.create_task(self._follow(child))
        watching = asyncio.create_task(self._end_silent(child))
        try:
            self._listener(Started(self.spec.name, num, child.pid))
            if self._stopping.is_set():  # `stop` was called during the start, when there was no child to end
                child.kill()
            await child.wait()
            child.kill()  # the rest of its process group, such as a stopped rank
            # Bounded, because a child that the process left behind in another session may hold the pipe open.
            await asyncio.wait([following], timeout=LAST_REPORT_S)
        finally:
            self._child = None
            child.kill()
            await child.wait()
            following.cancel()
            watching.cancel()
            child.close()
        if following.done() and not following.cancelled():
            following.result()
        served_s = None if self._ready_s is None else time.monotonic() - self._ready_s
        end = self._failure or child.describe_end()
        is_outside = self._failure is None and child.was_ended_from_outside
        return Life(end, served_s, self._failure, OOM_KILLED in end, is_outside)

    async def _start(self) -> ChildProcess:
        """Start the process; if persistent, without its log file if that cannot be written. Raises OSError."""
        try:
            return await ChildProcess.start(self.spec)
        except OSError as error:
            if not self._is_persistent or self.spec.log_path is None:
                raise
            child = await ChildProcess.start(replace(self.spec, log_path=None))
            self._listener(Warned(self.spec.name, f"logs here because its log file cannot be written: {error}"))
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
        """Kill the process when heartbeats stop, because the kernel still gives connections to its port."""
        await self._heartbeats.wait_silence()
        if self._stopping.is_set():
            return
        limit_s = self.spec.heartbeat_timeout_s
        self._failure = f"was killed because it sent no heartbeat for over {limit_s:g} s (stopped or hanging)"
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
        """Send SIGTERM, then SIGKILL after `timeout_s`, and wait for the process to end. `run` returns afterwards."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        """Kill the process."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()


async def end_all(stages: Sequence[Sequence[Supervisor]], timeout_s: float, kill: asyncio.Event) -> None:
    """Stop the processes stage by stage, each stage within `timeout_s`; kill all of them when `kill` is set."""

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

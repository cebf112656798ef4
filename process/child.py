"""One life of a process on this machine: its progress, its log, its end."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from baton.process.host_memory import OomKills
from baton.process.logs import DUMP_SIGNAL
from baton.process.progress import Progress, ProgressError, parse_progress

LOG_TAIL_BYTES = 4096
OOM_KILLED = "was killed by the kernel because memory ran out (OOM killer)"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to run; its command line gets `--progress-fd` and `--lifeline-fd` with each start."""

    name: str
    argv: tuple[str, ...]
    log_path: Path | None  # None: it writes where we do
    env: Mapping[str, str] = field(default_factory=dict)  # beside our own environment
    has_own_session: bool = True  # a terminal's Ctrl-C, and who ends our process group, reaches us alone
    heartbeat_timeout_s: float = 0.0  # silence after which its supervisor ends it; 0: it sends no heartbeats


class ChildProcess:
    """A started process; owns the read end of its progress pipe and the write end of its lifeline."""

    def __init__(
        self,
        process: Process,
        lifeline: int,
        progress: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        has_own_session: bool,
    ) -> None:
        self._has_own_session = has_own_session
        self._process = process
        self._lifeline = lifeline
        self._progress = progress
        self._pipe = pipe
        self._oom_kills = OomKills.around(process.pid)

    @classmethod
    async def start(cls, spec: ProcessSpec) -> "ChildProcess":
        """Starts the process. Raises OSError if it cannot be started."""
        progress_read, progress_write = os.pipe()
        try:
            lifeline_read, lifeline_write = os.pipe()
        except OSError:
            os.close(progress_read)
            os.close(progress_write)
            raise
        try:
            with nullcontext() if spec.log_path is None else spec.log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *spec.argv,
                    f"--progress-fd={progress_write}",
                    f"--lifeline-fd={lifeline_read}",
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **spec.env},
                    pass_fds=(progress_write, lifeline_read),
                    start_new_session=spec.has_own_session,
                )
        except OSError:
            os.close(progress_read)
            os.close(lifeline_write)
            raise
        finally:
            os.close(progress_write)
            os.close(lifeline_read)
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(progress_read, "rb")
        )
        return cls(process, lifeline_write, reader, pipe, spec.has_own_session)

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group's if it has a session of its own."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether its end is known."""
        return self._process.returncode is not None

    async def progress(self) -> AsyncIterator[Progress]:
        """What it says, until it ends or closes the pipe. Lines that are no progress messages are passed over."""
        while line := await self._progress.readline():
            try:
                yield parse_progress(line)
            except ProgressError:
                continue  # a line cut short by the process's death

    async def wait(self) -> int:
        """Its exit status once it has ended, negative for a signal."""
        return await self._process.wait()

    @property
    def is_oom_killed(self) -> bool:
        """Whether it was killed while the kernel's out-of-memory killer was at work around it."""
        return self._process.returncode == -signal.SIGKILL and self._oom_kills.has_grown

    @property
    def was_ended_from_outside(self) -> bool:
        """Whether another program ended it: by a signal, which it may have followed in order."""
        return self._process.returncode in (0, -signal.SIGTERM, -signal.SIGKILL) and not self.is_oom_killed

    def describe_end(self) -> str:
        """How it ended, in words."""
        assert self._process.returncode is not None
        return OOM_KILLED if self.is_oom_killed else describe_exit(self._process.returncode)

    def close(self) -> None:
        """Closes our ends of its pipes; once, after its end."""
        self._pipe.close()
        os.close(self._lifeline)

    def terminate(self) -> None:
        """Asks it to end (SIGTERM)."""
        if self._process.returncode is None:
            self._process.terminate()

    def dump_stacks(self) -> None:
        """Ask a process of ours to write the stack of each thread to its log."""
        if self._process.returncode is None:
            self._process.send_signal(DUMP_SIGNAL)

    def kill(self) -> None:
        """Ends it and whatever it started in its session (SIGKILL to its process group)."""
        if self._process.returncode is not None:
            return
        if self._has_own_session:
            with suppress(ProcessLookupError):  # it has just ended, which is known in a moment
                os.killpg(self.pid, signal.SIGKILL)
        else:
            self._process.kill()


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"


def log_tail(path: Path, num_lines: int) -> str:
    """Return the last lines of a log; none of one that cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-num_lines:])

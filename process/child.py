"""A child process on this machine: its progress, its log, its end."""

import asyncio
import errno
import os
import signal
import stat
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import psutil

from baton.process.host_memory import OomKills
from baton.process.log_records import LogFile
from baton.process.logs import DUMP_SIGNAL
from baton.process.pipes import read_pipe
from baton.process.progress import Progress, ProgressError, parse_progress

LOG_TAIL_BYTES = 4096
OOM_KILLED = "was killed by the kernel because memory ran out (OOM killer)"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to run; `--progress-fd` and `--lifeline-fd` are appended to its command line."""

    name: str
    argv: tuple[str, ...]
    log_path: Path | None  # None: inherits our standard output and error
    env: Mapping[str, str] = field(default_factory=dict)  # in addition to our environment
    has_own_session: bool = True  # a terminal's Ctrl-C or a kill of our process group does not reach it
    private_dir: Path | None = None  # for its Unix sockets; made again before a start if it was removed
    heartbeat_timeout_s: float = 0.0  # its supervisor ends it after this long without a heartbeat; 0: it sends none


class ChildProcess:
    """A started process, with the read end of its progress pipe and the write end of its lifeline."""

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
        """Start the process. Raises OSError if it cannot be started."""
        if spec.private_dir is not None:
            make_private_dir(spec.private_dir)
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
        reader, pipe = await read_pipe(progress_read)
        return cls(process, lifeline_write, reader, pipe, spec.has_own_session)

    @property
    def pid(self) -> int:
        """Process id, which is also the process group's if it has its own session."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether its exit status is known."""
        return self._process.returncode is not None

    async def progress(self) -> AsyncIterator[Progress]:
        """Yield its progress until it ends or closes the pipe. Lines that are not progress messages are skipped."""
        while line := await self._progress.readline():
            try:
                yield parse_progress(line)
            except ProgressError:
                continue  # a line cut short by the process's death

    async def wait(self) -> int:
        """Wait for its end and return the exit status, negative for a signal."""
        return await self._process.wait()

    @property
    def is_oom_killed(self) -> bool:
        """Whether it was killed while the kernel's out-of-memory killer was active in its control group."""
        return self._process.returncode == -signal.SIGKILL and self._oom_kills.has_grown

    @property
    def was_ended_from_outside(self) -> bool:
        """Whether another program ended it by a signal, after which it may have shut down in order."""
        return self._process.returncode in (0, -signal.SIGTERM, -signal.SIGKILL) and not self.is_oom_killed

    def describe_end(self) -> str:
        """Return how it ended, for messages."""
        assert self._process.returncode is not None
        return OOM_KILLED if self.is_oom_killed else describe_exit(self._process.returncode)

    def close(self) -> None:
        """Close our ends of its pipes; to be called once, after its end."""
        self._pipe.close()
        os.close(self._lifeline)

    def terminate(self) -> None:
        """Send SIGTERM if it runs."""
        if self._process.returncode is None:
            self._process.terminate()

    def dump_stacks(self) -> None:
        """Make it write all stack traces to its log; for Baton's own processes."""
        if self._process.returncode is None:
            self._process.send_signal(DUMP_SIGNAL)

    def kill(self) -> None:
        """Send SIGKILL to its process group, also after its own end; without its own session, only to the process."""
        if not self._has_own_session:
            if not self.has_ended:
                self._process.kill()
        elif self.has_ended:
            kill_leaderless_group(self.pid)
        else:
            with suppress(ProcessLookupError):  # it has just ended; `wait` will see it
                os.killpg(self.pid, signal.SIGKILL)


def kill_leaderless_group(group: int) -> None:
    """Send SIGKILL to what a reaped leader left in its process group; do nothing if that is nothing.

    The system does not reuse a process id while a process group has it. A process with this id is therefore a new one,
    which is spared: our group is empty. To be called soon after the leader's end, because a new group could not be
    told from ours once its own leader has been reaped too.
    """
    if not psutil.pid_exists(group):
        with suppress(ProcessLookupError, PermissionError):  # none is left, or the id is another user's new group's
            os.killpg(group, signal.SIGKILL)


def make_private_dir(path: Path) -> None:
    """Make a directory that only this user can enter, unless it exists.

    Raises OSError if it cannot be made, or if the path is another user's: in /tmp, any user can take a free name.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "it is not a directory of this user; remove it", str(path)) from None


def describe_exit(status: int) -> str:
    """Return an exit status as text."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"


def log_tail(path: Path, num_lines: int) -> str:
    """Return the last lines of a log, as text; empty if it cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            records = list(LogFile(path.stem, BytesIO(log.read())).records(is_last=True))
    except OSError:
        return ""
    return "\n".join("\n".join(record.line for record in records).splitlines()[-num_lines:])

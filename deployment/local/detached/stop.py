"""Stop of a detached server: the signals of Ctrl-C, to the process that holds its lock and to no other."""

import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import psutil

from baton.deployment.local.detached.folder import ServerFolder
from baton.deployment.local.detached.record import DRAIN_TIMEOUT_S
from baton.process.errors import PlainError

CUT_TIMEOUT_S = 15.0  # from the second signal, which ends running requests, to SIGKILL
SIGNAL_GAP_S = 0.5  # a second SIGTERM before the server has taken the first is lost: Linux keeps one
END_MARGIN_S = 30.0  # after the drain timeout, for the processes to end
MAX_TIMEOUT_S = 7 * 86400.0  # poll() takes no longer than 24 days


class NotRunning(PlainError):
    """No process holds the lock of the server."""


class StillRunning(PlainError):
    """The server has not ended in time."""


class OutOfReach(PlainError):
    """The server runs in another container or on another machine."""


@dataclass(frozen=True, slots=True)
class StoppedServer:
    """A server that was stopped."""

    pid: int
    was_cut: bool  # its running requests were not waited for
    took_s: float


def stop_server(folder: ServerFolder, timeout_s: float | None, end_margin_s: float = END_MARGIN_S) -> StoppedServer:
    """Stop a server, and return once it has ended.

    It lets running requests finish, for up to its own drain timeout; after `timeout_s`, which is at least SIGNAL_GAP_S
    and at most MAX_TIMEOUT_S, they are cut off, and a server that still runs is killed. Without `timeout_s` nothing is
    cut off: a server that runs `end_margin_s` after its drain timeout goes on, and StillRunning is raised.
    Raises NotRunning, OutOfReach, StillRunning and OSError.
    """
    begin_s = time.monotonic()
    pid = folder.holder()
    if pid is None:
        raise NotRunning(f"{folder.name} does not run")
    if pid <= 0:
        raise OutOfReach(f"{folder.name} runs in another container or on another machine; stop it there")
    pidfd = _open(pid)
    # The descriptor names one process for ever. If that holds the lock now, it is the server, whatever its id was
    # before: the id of a server that has ended meanwhile may be another process's.
    try:
        if pidfd is None or folder.holder() != pid:
            raise NotRunning(f"{folder.name} has just ended")
        if timeout_s is None:
            was_cut = False
            _drain(folder, pid, pidfd, end_margin_s)
        else:
            was_cut = _end(folder, pid, pidfd, max(timeout_s, SIGNAL_GAP_S))
    finally:
        if pidfd is not None:
            os.close(pidfd)
    if folder.holder() is None:  # otherwise the name has a new server already
        folder.forget()
    return StoppedServer(pid, was_cut, time.monotonic() - begin_s)


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _drain(folder: ServerFolder, pid: int, pidfd: int, end_margin_s: float) -> None:
    """Let a process finish its requests and end. Raises StillRunning if it takes too long."""
    record = folder.record()
    wait_s = end_margin_s + (DRAIN_TIMEOUT_S if record is None else record.drain_timeout_s)
    _begin(folder, pid, pidfd)
    if not _has_ended(pidfd, min(wait_s, MAX_TIMEOUT_S)):
        log = "" if record is None else f", whose log is {record.log_path},"
        raise StillRunning(
            f"{folder.name} (process {pid}){log} has not ended within {wait_s:g} s; `baton stop {folder.name} --force` "
            "ends it now and cuts off its requests"
        )


def _begin(folder: ServerFolder, pid: int, pidfd: int) -> None:
    """Make a server shut down, unless it already does: a second signal would cut off its requests.

    The server records that it shuts down only after it has taken the signal. Until then, calls from other processes
    read in the folder that it was sent.
    """
    with _exclusive(folder):
        record = folder.record()
        life = f"{pid} {_started_s(pid)}"
        if (record is not None and record.state == "stopping") or _signalled(folder) == life:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        with suppress(OSError):  # a full disk must not keep a server from being stopped
            folder.signalled_path.write_text(life)


@contextmanager
def _exclusive(folder: ServerFolder) -> Iterator[None]:
    """Keep other calls of this context manager for the folder waiting, in all processes, if the disk can lock files."""
    with ExitStack() as stack:
        with suppress(OSError):  # a full or read-only disk must not keep a server from being stopped
            file = stack.enter_context(folder.signalled_path.open("a"))  # NFS locks only files that may be written
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _started_s(pid: int) -> float:
    """Return the start time of a process, since later processes may have the same id; 0: it has ended."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _signalled(folder: ServerFolder) -> str | None:
    try:
        return folder.signalled_path.read_text()
    except (OSError, ValueError):
        return None


def _end(folder: ServerFolder, pid: int, pidfd: int, timeout_s: float) -> bool:
    """End a server; return whether its requests were cut off."""
    _begin(folder, pid, pidfd)
    if _has_ended(pidfd, timeout_s):
        return False
    signals: tuple[tuple[signal.Signals, float | None], ...]
    signals = ((signal.SIGTERM, CUT_TIMEOUT_S), (signal.SIGKILL, None))
    for num_sent, (number, wait_s) in enumerate(signals):
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return num_sent > 0
        if _has_ended(pidfd, wait_s):
            return True
    raise AssertionError("SIGKILL ends every process")


def _has_ended(pidfd: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1e3 * timeout_s))

"""Start of a detached server.

1. The command makes the server's folder, and starts the server in a new session, with its output in a log.
2. The server takes the folder's lock and writes its record (`server.py`).
3. The server reports over a socket, as to systemd, and the command waits until it is ready or ends. Reports are lost if
   the command is stopped by Ctrl-Z for long, so it reads the record as well.
4. The command exits, and the server goes on.
"""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from baton.deployment.local.detached.folder import ServerFolder
from baton.process.errors import PlainError
from baton.process.service_manager import READY, STATUS, VARIABLE
from baton.rpc.unix_sockets import socket_parent

MAX_MESSAGE_BYTES = 1 << 16
MAX_ERROR_BYTES = 1 << 14  # of the log, from which the error of a failed start is taken
TAIL_LINES = 20
END_TIMEOUT_S = 15.0  # from the first signal to an interrupted server to the second, and from that to SIGKILL
RECORD_PERIOD_S = 1.0  # between two looks at the record, without a report
ERROR = "Error: "  # how click's errors begin

ShowStatus = Callable[[str], None]


class StartFailed(PlainError):
    """The server ended before it was ready; `status` is its exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NameTaken(PlainError):
    """A server of this name runs already."""


def start_detached(
    folder: ServerFolder, argv: Sequence[str], log_path: Path, environment: Mapping[str, str], show: ShowStatus
) -> int:
    """Start a server, wait until it is ready, and return its process id. `show` gets its status while it starts.

    Raises NameTaken, StartFailed with the server's error, and OSError. The server is stopped if the wait is
    interrupted.
    """
    folder.make()
    if folder.holder() is not None:
        raise NameTaken(f"a server named {folder.name} runs already; stop it with `baton stop {folder.name}`")
    with TemporaryDirectory(prefix="baton-notify-", dir=socket_parent()) as directory, listener(directory) as reports:
        address = reports.getsockname()
        with log_path.open("ab") as log:
            offset, begin_s = log.tell(), time.time()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "PYTHONUNBUFFERED": "1", VARIABLE: address},
                start_new_session=True,
            )
        try:
            is_ready = wait_ready(process, folder, begin_s, reports, show)
        except BaseException:
            end(process)
            raise
    if not is_ready:
        raise StartFailed(f"{error_in(log_path, offset)}\nThe log is {log_path}", process.wait())
    process.returncode = 0  # it goes on without us: no warning that it was not waited for
    return process.pid


def listener(directory: str) -> socket.socket:
    """Return a socket for the server's reports."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(f"{directory}/notify")
    return made


def wait_ready(
    process: subprocess.Popen[bytes], folder: ServerFolder, begin_s: float, reports: socket.socket, show: ShowStatus
) -> bool:
    """Wait until the server that was started at `begin_s` is ready, or has ended; return whether it is ready."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(reports, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        while True:
            readable = {fd for fd, _ in poll.poll(1e3 * RECORD_PERIOD_S)}
            if reports.fileno() in readable:
                lines = reports.recv(MAX_MESSAGE_BYTES).decode(errors="replace").splitlines()
                for line in lines:
                    if line.startswith(STATUS):
                        show(line.removeprefix(STATUS))
                if READY in lines:
                    return True
            elif pidfd in readable:
                return False
            elif is_recorded_ready(folder, process.pid, begin_s):
                return True
    finally:
        os.close(pidfd)


def is_recorded_ready(folder: ServerFolder, pid: int, begin_s: float) -> bool:
    """Return whether the record, which an earlier server may have left, is that of this server and says it is ready."""
    record = folder.record()
    return record is not None and record.state == "ready" and record.started_at_s >= begin_s and folder.holder() == pid


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server that is not ready; its children end with it."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        try:
            process.wait(END_TIMEOUT_S)
            return
        except subprocess.TimeoutExpired:
            continue


def error_in(log_path: Path, offset: int) -> str:
    """Return the error that a server wrote to its log behind `offset`; the last lines if there is none."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = offset if offset <= size else 0  # it was emptied meanwhile: the server has reached max_log_bytes
            log.seek(max(begin, size - MAX_ERROR_BYTES))
            text = log.read().decode(errors="replace").strip()
    except OSError as error:
        return f"the server ended, and its log cannot be read: {error.strerror}"
    _, found, message = f"\n{text}".rpartition(f"\n{ERROR}")
    return message if found else "\n".join(["the server ended:", *text.splitlines()[-TAIL_LINES:]])

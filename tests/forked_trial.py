"""Processes that try grammars, forked by the tests' server of forks: see `tests.fork_server`."""

import json
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any


def send_request(connection: socket.socket, request: Mapping[str, object], files: Mapping[int, int]) -> None:
    """Ask the server for a process; `files`: ours, by the number that each gets there."""
    message = json.dumps({**request, "numbers": list(files)}).encode()
    data = len(message).to_bytes(4, "big") + message
    num_sent = socket.send_fds(connection, [data], list(files.values()))
    connection.sendall(data[num_sent:])


class ForkedTrial:
    """A forked process, with the part of `subprocess.Popen` that `baton.engine.grammar.trial` uses."""

    def __init__(self, path: Callable[[], str], argv: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        """Start `python -P -m MODULE FLAGS...`; `path` returns that of the server's socket."""
        _, _, _, module, *flags = argv
        request = {"module": module, "flags": flags, "env": dict(env), "cwd": os.getcwd(), "new_session": True}
        self.returncode: int | None = None
        self._lock = threading.Lock()  # guards the status, which is sent once
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(path())
        with ExitStack() as stack:
            (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
            for file in (theirs_in, theirs_out):
                stack.callback(os.close, file)
            self.stdin, self.stdout = os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb")
            send_request(self._connection, request, {0: theirs_in, 1: theirs_out, 2: 2})
        self.pid = int.from_bytes(self._connection.recv(4), "big")
        assert self.pid > 0, "the fork server has ended"

    def __del__(self) -> None:
        """Close the connection, on which any number of threads may have waited."""
        self._connection.close()

    def poll(self) -> int | None:
        """Return the status if the process has ended."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end of the process; return its status, negative for a signal."""
        select.select([self._connection], [], [])  # after the status the server closes the connection
        with self._lock:
            if self.returncode is None:
                status = self._connection.recv(4)
                self.returncode = int.from_bytes(status, "big", signed=True) if status else -9
            return self.returncode

    def kill(self) -> None:
        """Send SIGKILL if the process has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its status is on its way
                os.kill(self.pid, 9)

"""The child process of an LLM, which runs the router and the workers for it alone."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from baton.offline.directory import CLUSTER_LOG, make_directory
from baton.offline.errors import Ended, StartFailed
from baton.offline.options import OfflineOptions
from baton.process.child import describe_exit, log_tail
from baton.process.progress import Failed, ProgressError, Ready, parse_progress
from baton.router.config import SECRETS

END_TIMEOUT_S = 30.0  # of an orderly end, before the process is killed; its children then end by themselves
NUM_LINES = 12  # of the log, in errors
NAME_OF_ERROR = re.compile(r"^\w+: ")  # with which messages of failed processes begin


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that is ready."""

    url: str
    max_model_len: int  # of prompt plus output, the same for all requests


class PrivateServer:
    """Owner of the child process and its directory. `close` may be called from any thread, also at interpreter exit.

    The child is started by exec and never imports the caller's script. It runs in a separate session, so Ctrl-C in a
    terminal reaches only the caller. It ends when its standard input is closed, however the caller's process ends.
    """

    def __init__(self, options: OfflineOptions) -> None:
        """Start the child. Raises OptionError if its logs cannot be written, OSError if it cannot be started."""
        self._directory, self.log_dir = make_directory(options.content(), options.log_dir)
        self._log = self.log_dir / CLUSTER_LOG
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._keeps_directory = False
        try:
            self._child, self._progress = _start(self._directory, self._log)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        os.register_at_fork(after_in_child=_Disowned(self))

    def wait_ready(self) -> Serving:
        """Wait until all processes serve. Raises StartFailed if they cannot."""
        with self._progress as lines:
            for line in lines:
                with suppress(ProgressError):
                    match parse_progress(line):
                        case Ready(url, {"max_model_len": int() as max_model_len}):
                            return Serving(url, max_model_len)
                        case Failed(message):
                            self._child.wait()
                            raise self._failure(NAME_OF_ERROR.sub("", message))
        status = self._child.wait()
        text = log_tail(self._log, NUM_LINES)
        raise self._failure(f"the process of the LLM {describe_exit(status)}\n{text}\nIts log: {self._log}")

    def check(self) -> None:
        """Raise Ended if `close` was called, or unless the child runs."""
        assert self._child.stdin is not None
        if self._child.stdin.closed:
            raise Ended("the LLM was closed")
        status = self._child.poll()
        if status is not None:
            text = log_tail(self._log, NUM_LINES)
            raise Ended(f"the processes of the LLM are gone: their parent {describe_exit(status)}\n{text}".rstrip())

    def close(self) -> None:
        """End all processes and remove the directory. Does nothing in a process that was forked from the owner."""
        if os.getpid() != self._owner:
            return
        with self._turn:
            self.disown()
            try:
                self._child.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._child.pid, signal.SIGKILL)
                self._child.wait()
            if not self._keeps_directory:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _failure(self, message: str) -> StartFailed:
        """Return the error of a failed start. `close` keeps the directory if the message names a log in it."""
        self._keeps_directory = str(self._directory) in message
        return StartFailed(message)

    def disown(self) -> None:
        """Close our end of the pipe at which the child waits for its end."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()


class _Disowned:
    """Hook for forks: a forked process must not keep the child alive after the owner's end."""

    def __init__(self, server: PrivateServer) -> None:
        self._server = weakref.ref(server)

    def __call__(self) -> None:
        server = self._server()
        if server is not None:
            server.disown()


def _start(directory: Path, log: Path) -> tuple["subprocess.Popen[bytes]", BinaryIO]:
    """Start the child. Return it and its progress."""
    progress_read, progress_write = os.pipe()
    progress = os.fdopen(progress_read, "rb")
    # -P: do not import from the current directory, which may have a package with the same name.
    argv = (sys.executable, "-P", "-m", "baton.offline", str(directory), f"--progress-fd={progress_write}")
    env = {name: value for name, value in os.environ.items() if name not in SECRETS.values()}
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**env, "PYTHONUNBUFFERED": "1"},
                pass_fds=(progress_write,),
                start_new_session=True,
            )
    except BaseException:
        progress.close()
        raise
    finally:
        os.close(progress_write)
    return child, progress

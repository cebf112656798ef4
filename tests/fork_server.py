"""Starts of Baton's processes by forking a server that has imported torch, gRPC and the HTTP libraries.

A worker's start takes more than two seconds of CPU time, nearly all of it in imports. The tests start hundreds of them.
What is forked runs the same `__main__` with the same arguments, environment, files and session as a process that is
spawned; only its command line in /proc is the server's. `--spawn` starts all processes as production does.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from asyncio import StreamReader
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Sequence
from fcntl import F_DUPFD, fcntl
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from baton.engine.grammar import trial
from baton.process.pipes import read_pipe
from tests.forked_trial import ForkedTrial, send_request

PRELOADED = (
    "baton.decode_worker.worker",
    "baton.engine.grammar.xgrammar_backend",
    "baton.prefill_worker.worker",
    "baton.router.app",
    "baton.simulation.workers",
    "baton.cli.serve",
    "baton.cli.bench",
    "baton.cli.drain",
    "baton.cli.role",
    "baton.cli.worker",
    "baton.deployment.local.any_role_worker",
)
FORKED = (
    "baton",
    "baton.decode_worker",
    "baton.membership.rendezvous",
    "baton.prefill_worker",
    "baton.router",
    "baton.simulation.workers",
    "tests.faults.behind_proxy",
)
READ_AT_IMPORT = ("CUDA_", "GOMP_", "GRPC_", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHONPATH", "TORCH_")
MAX_FDS = 16
FIRST_FREE_FD = 256  # received files move above the numbers that a process asks for

spawn = asyncio.create_subprocess_exec


class ForkServer:
    """One server process, which starts when the first process is forked."""

    def __init__(self) -> None:
        self._directory = ""
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> str:
        """Path of the server's socket; starts the server."""
        if self._server is None:
            self._directory = tempfile.mkdtemp(prefix="fork-")
            argv = [sys.executable, "-P", "-m", "tests.fork_server", self._path]
            env = {**os.environ, "PYTHONPATH": "."}
            root = Path(__file__).parents[1]
            self._server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=env)
            assert self._server.stdout is not None
            assert self._server.stdout.readline() == b"ready\n"
        return self._path

    @property
    def pid(self) -> int | None:
        """Process id of the server, if it runs."""
        return None if self._server is None else self._server.pid

    @property
    def _path(self) -> str:
        return f"{self._directory}/socket"

    def close(self) -> None:
        """End the server. What it has forked ends by its lifelines."""
        if self._server is not None:
            self._server.communicate()  # closes its standard input
            shutil.rmtree(self._directory)


class ForkedProcess:
    """A forked process, with the part of `asyncio.subprocess.Process` that our code and tests use."""

    def __init__(self, connection: socket.socket, stdout: StreamReader | None, stderr: StreamReader | None) -> None:
        self._connection = connection
        self._ended = asyncio.Event()
        self.stdin = None
        self.stdout = stdout
        self.stderr = stderr
        self.pid = 0
        self.returncode: int | None = None

    async def start(self, request: dict[str, object], files: dict[int, int]) -> None:
        """Send the request, with our files by the number that they get there, and wait for the process id."""
        send_request(self._connection, request, files)
        loop = asyncio.get_running_loop()
        self._connection.setblocking(False)
        try:
            self.pid = int.from_bytes(await loop.sock_recv(self._connection, 4), "big")
        except BaseException:
            self._connection.close()  # the server then ends the process
            raise
        assert self.pid > 0, "the fork server has ended"
        loop.add_reader(self._connection, self._on_end, loop)

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._connection.recv(4)
        loop.remove_reader(self._connection)
        self._connection.close()
        # Without a status the server was killed, and with it ended the lifelines of what it has forked.
        self.returncode = int.from_bytes(status, "big", signed=True) if status else -signal.SIGKILL
        self._ended.set()

    async def wait(self) -> int:
        """Wait for its end and return the exit status, negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes | None, bytes | None]:
        """Read its output to the end and wait for its end."""
        stdout, stderr = await asyncio.gather(_read(self.stdout), _read(self.stderr))
        await self.wait()
        return stdout, stderr

    def send_signal(self, number: int) -> None:
        """Send a signal if it has not ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


async def _read(stream: StreamReader | None) -> bytes | None:
    return None if stream is None else await stream.read()


class Launcher:
    """A replacement of `asyncio.create_subprocess_exec` that forks the processes of `FORKED` and spawns all others."""

    def __init__(self, path: Callable[[], str], is_nested: bool) -> None:
        """`path`: of the server's socket. `is_nested`: this process was forked itself."""
        self._path = path
        self._is_nested = is_nested
        self._imported_env = _imported_env(os.environ)

    async def __call__(self, *argv: str, **options: Any) -> Process:
        """Start a process."""
        module, flags = _module_of(argv)
        if module not in FORKED or not self._is_forkable(options):
            return await spawn(*argv, **options)
        env = options.get("env") or dict(os.environ)
        new_session = bool(options.get("start_new_session"))
        cwd = str(options.get("cwd") or os.getcwd())
        request = {"module": module, "flags": flags, "env": env, "cwd": cwd, "new_session": new_session}
        with contextlib.ExitStack() as stack:
            files = {0: _open_null(stack, os.O_RDONLY)}
            files[1], stdout = await _output(stack, options.get("stdout"), 1)
            files[2], stderr = await _output(stack, options.get("stderr"), files[1])
            files.update((number, number) for number in options.get("pass_fds", ()))
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(self._path())
            process = ForkedProcess(connection, stdout, stderr)
            await process.start(request, files)
        return process  # type: ignore[return-value]

    def _is_forkable(self, options: dict[str, Any]) -> bool:
        if options.keys() - {"stdin", "stdout", "stderr", "env", "cwd", "pass_fds", "start_new_session"}:
            return False
        in_our_session = not options.get("start_new_session")
        if options.get("stdin") == PIPE or (self._is_nested and in_our_session):
            return False
        return _imported_env(options.get("env") or os.environ) == self._imported_env


def _open_null(stack: contextlib.ExitStack, mode: int) -> int:
    file = os.open(os.devnull, mode)
    stack.callback(os.close, file)
    return file


async def _output(stack: contextlib.ExitStack, target: Any, default: int) -> tuple[int, StreamReader | None]:
    """Return the file for standard output or error, and for PIPE a reader of it."""
    if target is None:
        return default if default == 1 else 2, None
    if target == DEVNULL:
        return _open_null(stack, os.O_WRONLY), None
    if target == STDOUT:
        return default, None
    if target != PIPE:
        return target if isinstance(target, int) else target.fileno(), None
    read, write = os.pipe()
    stack.callback(os.close, write)
    reader, _ = await read_pipe(read)
    return write, reader


def _module_of(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the module and its flags of a `python -m` command or of the command `baton`; ("", []) for another."""
    words = [str(word) for word in argv]
    if words[0] == str(Path(sys.executable).with_name("baton")):
        return "baton", words[1:]
    rest = words[2:] if words[1:2] in (["-P"], ["-u"]) else words[1:]
    if words[0] != sys.executable or rest[:1] != ["-m"]:
        return "", []
    return rest[1], rest[2:]


def _imported_env(env: Any) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_IMPORT)}


class Server:
    """Loop of the server process: forks what it is asked for and reports its end on the connection that asked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._connections: dict[int, socket.socket] = {}  # by process id
        self._wakeup, self._signalled = socket.socketpair()
        self._wakeup.setblocking(False)
        self._signalled.setblocking(False)

    def run(self) -> None:
        """Serve until standard input is closed."""
        signal.set_wakeup_fd(self._signalled.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            for file in (self._listener, self._wakeup, sys.stdin):
                selector.register(file, selectors.EVENT_READ)
            print("ready", flush=True)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is sys.stdin:
                        return
                    if key.fileobj is self._wakeup:
                        self._wakeup.recv(4096)
                        self._reap()
                    elif key.fileobj is self._listener:
                        # Its request is read once it is there: until then, its sender may wait for another process.
                        selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                    else:
                        selector.unregister(key.fileobj)
                        assert isinstance(key.fileobj, socket.socket)
                        self._fork(key.fileobj)

    def _fork(self, connection: socket.socket) -> None:
        head, files, _, _ = socket.recv_fds(connection, 4, MAX_FDS)
        if not head:  # the sender has ended
            connection.close()
            return
        request = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            _run_forked(request, files, self._path)
        for file in files:
            os.close(file)
        self._connections[pid] = connection
        try:
            connection.sendall(pid.to_bytes(4, "big"))
        except OSError:  # who asked was cancelled, and does not know of the process
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._connections.pop(pid) as connection, contextlib.suppress(OSError):  # it may be closed
                connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _run_forked(request: dict[str, Any], files: list[int], server: str) -> NoReturn:
    """Become the process that `request` describes, and run it."""
    status = 1
    try:
        _become(request, files)
        asyncio.create_subprocess_exec = Launcher(lambda: server, is_nested=True)
        trial.Popen = partial(ForkedTrial, lambda: server)  # type: ignore[misc,assignment]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(request: dict[str, Any], files: list[int]) -> None:
    if request["new_session"]:
        os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    moved = [fcntl(file, F_DUPFD, FIRST_FREE_FD) for file in files]
    os.closerange(3, FIRST_FREE_FD)
    for file, number in zip(moved, request["numbers"], strict=True):
        os.dup2(file, number)  # inheritable, as for a spawned process
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [request["module"], *request["flags"]]


if __name__ == "__main__":
    from baton.process.environment import prepare_environment

    prepare_environment()
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    Server(sys.argv[1]).run()

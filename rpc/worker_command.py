"""The command line of a worker process."""

import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace

from engine.config import EngineConfig
from rpc.config_file import load
from rpc.entry import process_flags, run_process, take_process_flags
from rpc.options import Command, click_options, options_of
from rpc.worker_config import WorkerConfig
from rpc.worker_options import WORKER_OPTIONS

Start = Callable[[WorkerConfig], Coroutine[object, object, None]]


def worker_command(roles: tuple[str, ...]) -> Callable[[Command], Command]:
    """A decorator that gives a click command every option of a worker that may have one of `roles`."""
    infos = {**WORKER_OPTIONS, "role": replace(WORKER_OPTIONS["role"], choices=roles)}
    worker = click_options(options_of(WorkerConfig, infos))
    engine = click_options(options_of(EngineConfig, infos))

    def decorate(command: Command) -> Command:
        return worker(engine(process_flags(command)))

    return decorate


def run_worker(flags: dict[str, object], default_role: str, start: Start) -> None:
    """Runs the worker that the flags (and the file that they name) describe, until it is told to end."""
    process = take_process_flags(flags)
    flags["role"] = flags.get("role") or default_role
    suffix = f"-{flags['port']}" if flags.get("port") else ""
    flags["worker_id"] = flags.get("worker_id") or f"{socket.gethostname()}-{flags['role']}{suffix}"
    config = load(WorkerConfig, WORKER_OPTIONS, process.config_file, flags)
    run_process(process.named(config.worker_id, config.progress_fd), lambda: start(config))

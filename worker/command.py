"""The command line of a worker process."""

import secrets
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace

from baton.engine.config import EngineConfig
from baton.engine.execution.visible_gpus import visible_gpus
from baton.process.entry import process_flags, run_process, take_process_flags
from baton.settings.config_file import load
from baton.settings.device import require_gpus
from baton.settings.names import NAME_RULE, is_name
from baton.settings.options import Command, OptionInfo, click_options, options_of
from baton.settings.values import OptionError, Value
from baton.settings.worker_config import Role, WorkerConfig
from baton.settings.worker_options import WORKER_OPTIONS

Start = Callable[[WorkerConfig], Coroutine[object, object, None]]


def worker_command(roles: tuple[Role, ...]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a worker with one of `roles` to a click command."""
    infos = _infos(roles)
    worker = click_options(options_of(WorkerConfig, infos))
    engine = click_options(options_of(EngineConfig, infos))

    def decorate(command: Command) -> Command:
        return worker(engine(process_flags(command)))

    return decorate


def run_worker(flags: dict[str, object], roles: tuple[Role, ...], start: Start) -> None:
    """Run the worker described by the flags and their config file until a signal ends it.

    The default role is the first of `roles`. Raises OptionError naming the offending key.
    """
    process = take_process_flags(flags)
    defaults: dict[str, Value] = {"role": roles[0], "worker_id": ""}
    config = load(WorkerConfig, _infos(roles), process.config_file, flags, defaults)
    config = replace(config, worker_id=config.worker_id or _default_id(config))
    if not is_name(config.worker_id):
        raise OptionError(f"worker_id: {config.worker_id!r} must be {NAME_RULE}")
    if process.lifeline_fd is None and config.is_on_gpu:  # a supervisor has already checked
        require_gpus(config.engine.device, config.tensor_parallel, visible_gpus())
    run_process(process.named(config.worker_id, config.progress_fd), lambda: start(config))


def _infos(roles: tuple[Role, ...]) -> dict[str, OptionInfo]:
    return {**WORKER_OPTIONS, "role": replace(WORKER_OPTIONS["role"], choices=roles)}


def _default_id(config: WorkerConfig) -> str:
    """Return a worker id: stable over restarts if the port is fixed, otherwise random, like the port."""
    return f"{socket.gethostname()}-{config.role}-{config.port or secrets.token_hex(4)}"

"""The command line of a worker process."""

import secrets
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.gguf.tensors import model_name
from baton.engine.config import TOKENIZER, EngineConfig
from baton.engine.errors import EngineError
from baton.engine.execution.visible_gpus import visible_gpus
from baton.process.entry import process_flags, run_process, take_process_flags
from baton.process.log_format import LogSource
from baton.settings.config_file import load
from baton.settings.flags import Command, click_options
from baton.settings.names import NAME_RULE, Role, is_name
from baton.settings.options import options_of
from baton.settings.values import OptionError, Value
from baton.worker.config import WorkerConfig, rank_suffix
from baton.worker.device import require_gpus

Start = Callable[[WorkerConfig], Coroutine[object, object, None]]


def worker_command(roles: tuple[Role, ...]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a worker with one of `roles` to a click command."""
    options = options_of(WorkerConfig)
    role = replace(options["role"], help=replace(options["role"].help, choices=roles))
    worker = click_options({**options, "role": role})
    engine = click_options(options_of(EngineConfig))

    def decorate(command: Command) -> Command:
        return worker(engine(process_flags(command)))

    return decorate


def run_worker(flags: dict[str, object], roles: tuple[Role, ...], start: Start, rank: int = 0) -> None:
    """Run the worker, or one of its follower ranks, described by the flags and their config file, until a signal.

    The default role is the first of `roles`. Raises OptionError naming the offending key.
    """
    process = take_process_flags(flags)
    defaults: dict[str, Value] = {"role": roles[0], "worker_id": ""}
    config = load(WorkerConfig, process.config_file, flags, defaults)
    if config.role not in roles:
        raise OptionError(f"role: {config.role!r} is not allowed; it must be one of {', '.join(roles)}")
    config = with_directory(replace(config, worker_id=config.worker_id or _default_id(config)))
    if not is_name(config.worker_id):
        raise OptionError(f"worker_id: {config.worker_id!r} must be {NAME_RULE}")
    if process.lifeline_fd is None and config.is_on_gpu:  # a supervisor has already checked
        require_gpus(config.engine.device, config.ranks_per_node, visible_gpus())
    source = log_source(config, rank)
    run_process(process.of(source, config.progress_fd), lambda: start(config))


def log_source(config: WorkerConfig, rank: int) -> LogSource:
    """Return how a rank's process logs. Follower ranks have no role: they do not learn of its changes."""
    worker = config.worker_id.removesuffix(rank_suffix(rank))
    return LogSource(config.worker_id, "" if rank else config.role, worker)


def with_directory(config: WorkerConfig) -> WorkerConfig:
    """Return the config with a directory as the model, also for a GGUF file.

    Raises OptionError for a damaged one, and for a tokenizer's directory without a tokenizer.
    """
    model, tokenizer = Path(config.engine.model), config.engine.tokenizer
    if tokenizer is not None and not (Path(tokenizer) / TOKENIZER).is_file():
        raise OptionError(f"tokenizer: {tokenizer} is not a directory with a {TOKENIZER}")
    try:
        directory = checkpoint_directory(model, with_tokenizer=tokenizer is None)
    except EngineError as error:
        raise OptionError(f"model: {error}") from error
    if directory == model:
        return config
    name = config.served_model_name or model_name(model)
    return replace(config, served_model_name=name, engine=replace(config.engine, model=str(directory)))


def _default_id(config: WorkerConfig) -> str:
    """Return a worker id: stable over restarts if the port is fixed, otherwise random, like the port."""
    return f"{socket.gethostname()}-{config.role}-{config.port or secrets.token_hex(4)}"

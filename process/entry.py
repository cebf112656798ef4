"""How a worker's or router's process runs: logging, lifeline, and a failure that is told to the supervisor."""

import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec

import click
import uvloop

from baton.engine.errors import EngineError
from baton.kvtransfer.errors import TransportUnavailable
from baton.process.environment import prepare_environment
from baton.process.errors import PlainError
from baton.process.logs import LOG_LEVELS, dump_stacks_on_signal, set_up_logging
from baton.process.progress import ProgressReporter
from baton.settings.options import Command
from baton.settings.values import OptionError

GRACE_S = 3.0  # between the request to end and the end by force


def hold_lifeline(fd: int) -> None:
    """Watches the pipe's read end `fd` from a thread; at its end, sends this process SIGTERM and then ends it."""
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


logger = logging.getLogger(__name__)

P = ParamSpec("P")
WAITING_THREADS = "group-"  # what the names of threads begin with that wait for ranks which may be gone

PLAIN_ERRORS = (
    EngineError,
    TransportUnavailable,
    OptionError,
    PlainError,
    OSError,
)  # say themselves what is wrong, mostly with what we were told


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What a process is told beside its config."""

    log_level: str = "info"
    config_file: Path | None = None
    lifeline_fd: int | None = None  # read end of the supervisor's pipe
    progress_fd: int | None = None
    name: str = "baton"  # in the log

    def named(self, name: str, progress_fd: int | None) -> "ProcessOptions":
        """The same for a process of this name."""
        return replace(self, name=name, progress_fd=progress_fd)


def process_flags(command: Command) -> Command:
    """Gives a click command the flags of `ProcessOptions`."""
    command = click.option("--lifeline-fd", type=int, hidden=True)(command)
    return config_file_flag(log_level_flag(command))


def config_file_flag(command: Command) -> Command:
    """Gives a click command --config."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--config", "config_file", type=file, help="YAML file of options; flags win over it.")(command)


def log_level_flag(command: Command) -> Command:
    """Gives a click command --log-level."""
    level = click.Choice(LOG_LEVELS)
    return click.option("--log-level", type=level, default="info", show_default=True, help="Least level logged.")(
        command
    )


def take_process_flags(flags: dict[str, object]) -> ProcessOptions:
    """Takes what `process_flags` added out of a command's flags."""
    lifeline_fd, file = flags.pop("lifeline_fd"), flags.pop("config_file")
    assert lifeline_fd is None or isinstance(lifeline_fd, int)
    assert file is None or isinstance(file, Path)
    return ProcessOptions(log_level=str(flags.pop("log_level")), config_file=file, lifeline_fd=lifeline_fd)


def plain_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Makes a wrong option a one-line error of the command line."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except OptionError as error:
            raise click.UsageError(str(error)) from error

    return wrapped


def run_process(options: ProcessOptions, start: Callable[[], Coroutine[object, object, None]]) -> None:
    """Runs what `start` makes until it returns; `start` imports what is heavy.

    A failure is logged (with its traceback unless it is a plain one), told to the supervisor in one line and ends the
    process with status 1.
    """
    prepare_environment()
    set_up_logging(options.name, options.log_level)
    dump_stacks_on_signal()
    progress = ProgressReporter(options.progress_fd)
    if options.lifeline_fd is not None:
        hold_lifeline(options.lifeline_fd)
    progress.loading(0)
    try:
        uvloop.run(start())
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        is_plain = isinstance(error, PLAIN_ERRORS) and not logger.isEnabledFor(logging.DEBUG)
        logger.error("cannot go on: %s", message, exc_info=not is_plain)
        progress.failed(message)
        sys.stderr.flush()
        os._exit(1)  # threads of a half-started engine must not keep a dead process alive
    _end_with_threads()


def _end_with_threads() -> None:
    """Ends the process at once where threads are left that wait in a library for somebody else: they would crash in
    the interpreter's own end."""
    if any(thread.name.startswith(WAITING_THREADS) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

"""Entry of a worker's or router's process: logging, lifeline, and reporting of failures to the supervisor."""

import ctypes
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
from baton.process.log_format import LogSource
from baton.process.log_settings import DEFAULT_LOG, FORMAT_HELP, LEVEL_HELP, LOG_FORMATS, LOG_LEVELS, LogSettings
from baton.process.logs import dump_stacks_on_signal, log_uncaught_exceptions, set_up_logging
from baton.process.progress import ProgressReporter
from baton.settings.flags import Command
from baton.settings.values import OptionError

GRACE_S = 3.0  # from SIGTERM to the forced exit
PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>
_lifeline_ended = threading.Event()


def hold_lifeline(fd: int) -> None:
    """Watch a pipe's read end on a thread. When the pipe closes, send this process SIGTERM; exit after GRACE_S.

    On Linux, the end of the parent process also continues this process if it is stopped, so that the thread can run.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()


def is_orphan() -> bool:
    """Return whether the lifeline has ended; then its thread sends SIGTERM.

    The kernel closes the pipes of a process that ends before its children get another parent.
    """
    return _lifeline_ended.is_set()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    _lifeline_ended.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


logger = logging.getLogger(__name__)

P = ParamSpec("P")
DEFAULT_SOURCE = LogSource("baton")
WAITING_THREADS = "group-"  # name prefix of threads that may wait for lost ranks

PLAIN_ERRORS = (
    EngineError,
    TransportUnavailable,
    OptionError,
    PlainError,
    OSError,
)  # their text is enough without a traceback; mostly caused by options or the environment


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of a process in addition to its config."""

    log: LogSettings = DEFAULT_LOG
    config_file: Path | None = None
    lifeline_fd: int | None = None  # read end of the supervisor's pipe
    progress_fd: int | None = None
    source: LogSource = DEFAULT_SOURCE

    def of(self, source: LogSource, progress_fd: int | None) -> "ProcessOptions":
        """Return the options of a process that logs as `source`, with its progress pipe."""
        return replace(self, source=source, progress_fd=progress_fd)


def process_flags(command: Command) -> Command:
    """Add the flags of `ProcessOptions` to a click command."""
    command = click.option("--lifeline-fd", type=int, hidden=True)(command)
    return config_file_flag(log_flags(command))


def config_file_flag(command: Command) -> Command:
    """Add --config to a click command."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--config", "config_file", type=file, help="YAML file of options; flags win over it.")(command)


def log_flags(command: Command) -> Command:
    """Add --log-level and --log-format to a click command."""
    form = click.option(
        "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help=FORMAT_HELP
    )
    level = click.option(
        "--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help=LEVEL_HELP
    )
    return level(form(command))


def take_log_flags(flags: dict[str, object]) -> LogSettings:
    """Remove the flags of `log_flags` from a command's flags and return their values."""
    return LogSettings(level=str(flags.pop("log_level")), format=str(flags.pop("log_format")))


def take_process_flags(flags: dict[str, object]) -> ProcessOptions:
    """Remove the flags of `process_flags` from a command's flags and return their values."""
    lifeline_fd, file = flags.pop("lifeline_fd"), flags.pop("config_file")
    assert lifeline_fd is None or isinstance(lifeline_fd, int)
    assert file is None or isinstance(file, Path)
    return ProcessOptions(log=take_log_flags(flags), config_file=file, lifeline_fd=lifeline_fd)


def plain_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command so that an OptionError becomes a one-line usage error."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except OptionError as error:
            raise click.UsageError(str(error)) from error

    return wrapped


def run_process(options: ProcessOptions, start: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run the coroutine of `start` until it returns; `start` does the heavy imports.

    A failure is logged (with a traceback unless it is in PLAIN_ERRORS), reported to the supervisor in one line, and
    ends the process with status 1.
    """
    prepare_environment()
    set_up_logging(options.source, options.log)
    log_uncaught_exceptions()
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
    """Exit at once if threads still wait for other ranks in a library: the interpreter's shutdown would crash."""
    if any(thread.name.startswith(WAITING_THREADS) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

"""`python -m baton.offline`: the processes of one `LLM`.

1. The config file, the sockets and, by default, the logs are in a private directory.
2. When all processes serve, the URL goes to the LLM by the progress pipe, and so does the reason if they cannot.
3. Standard input is a pipe that the LLM holds open. When it is closed, by the LLM or because its process ended, the
   processes are ended and the directory is removed.
"""

import asyncio
import select
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import click

from baton.cli.options.draft_source import with_draft_directories
from baton.cli.options.model_source import find_checkpoint, plan_model
from baton.deployment.local.cluster import LocalCluster
from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.cluster_plan import ClusterPlan
from baton.deployment.local.events import ClusterReady, Event, Warned
from baton.deployment.local.supervisor import RestartPolicy
from baton.offline.directory import CONFIG, LOGS, SOCKETS
from baton.process.child import make_private_dir
from baton.process.end_signals import EndSignals
from baton.process.entry import ProcessOptions, log_flags, run_process
from baton.process.errors import PlainError
from baton.process.log_format import LogSource
from baton.process.log_settings import LogSettings
from baton.process.pipes import read_pipe
from baton.process.progress import ProgressReporter

STDIN_FD = 0


class CannotServe(PlainError):
    """The model or the options cannot be served; the text has the reason."""


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--progress-fd", type=int)
@log_flags
def main(directory: Path, progress_fd: int | None, log_level: str, log_format: str) -> None:
    """Serve the config in DIRECTORY until standard input is closed."""
    log = LogSettings(log_level, log_format)
    process = ProcessOptions(log=log, progress_fd=progress_fd, source=LogSource("cluster"))
    run_process(process, lambda: _serve(directory, progress_fd, log))


async def _serve(directory: Path, progress_fd: int | None, log: LogSettings) -> None:
    signals = EndSignals()
    signals.listen()
    reader, pipe = await read_pipe(STDIN_FD)
    watching = asyncio.create_task(_wait_end(reader, signals.stop))
    try:
        await _cluster(directory, ProgressReporter(progress_fd), log).run(signals.stop, signals.kill)
    except Exception:
        if _is_abandoned():  # otherwise the LLM removes the directory, unless its error names a log there
            shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        watching.cancel()
        pipe.close()
    shutil.rmtree(directory, ignore_errors=True)


def _cluster(directory: Path, progress: ProgressReporter, log: LogSettings) -> LocalCluster:
    """Return the cluster of the config in a directory. Raises CannotServe or OptionError."""
    plan, log_dir, key = _plan(directory, log)

    def listen(event: Event) -> None:
        if isinstance(event, ClusterReady):
            longest = min(worker.max_model_len for worker in event.workers)
            progress.ready(address=event.url, max_model_len=longest)
        elif isinstance(event, Warned):
            print(f"{event.name}: {event.message}", file=sys.stderr, flush=True)

    return LocalCluster(
        plan.specs(log_dir),
        plan.url,
        listen,
        plan.router.drain_timeout_s,
        RestartPolicy(),
        plan.rendezvous_specs(log_dir),
        watch_key=key,
    )


def _plan(directory: Path, log: LogSettings) -> tuple[ClusterPlan, Path, str]:
    """Return the processes, the directory of their logs, and the router's key. Raises CannotServe or OptionError."""
    settings = load_settings(directory / CONFIG, {})
    sockets = directory / SOCKETS
    make_private_dir(sockets)
    try:
        settings = replace(settings, engine=with_draft_directories(settings.engine))
        checkpoint = find_checkpoint(settings.cluster, settings.engine["decode"])
        plan = plan_model(settings, checkpoint, sockets, log)
    except click.ClickException as error:
        raise CannotServe(error.message) from error
    given, keys = settings.cluster.log_dir, settings.router["api_key"]
    assert isinstance(keys, tuple)
    return plan, directory / LOGS if given is None else Path(given), keys[0]


def _is_abandoned() -> bool:
    """Return whether standard input is closed at its other end: no LLM waits for this process."""
    stdin = select.poll()
    stdin.register(STDIN_FD, select.POLLIN)
    return any(flags & select.POLLHUP for _, flags in stdin.poll(0))


async def _wait_end(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    while await reader.read(1):
        pass
    stop.set()


if __name__ == "__main__":
    main(prog_name="python -m baton.offline")

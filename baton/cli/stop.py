"""`baton stop`: stop servers that `baton serve --detach` has started."""

import math
import os
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread

import rich_click as click

from baton.cli.options.detached_servers import complete_names
from baton.deployment.local.detached.folder import NAME, NAME_RULE, ServerFolder, server_folders
from baton.deployment.local.detached.stop import MAX_TIMEOUT_S, NotRunning, OutOfReach, StillRunning, stop_server


@click.command(name="stop")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--port", type=click.IntRange(1, 65535), help="Stop the server that has this port.")
@click.option("--all", "is_all", is_flag=True, help="Stop all detached servers.")
@click.option(
    "--timeout-s",
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, MAX_TIMEOUT_S),
    help="Seconds to let running requests finish; the rest are cut off. Default: the server's --drain-timeout-s.",
)
@click.option("--force", is_flag=True, help="Cut off running requests now, and kill a server that does not end.")
def command(name: str | None, port: int | None, is_all: bool, timeout_s: float | None, force: bool) -> None:
    """Stop the server NAME that `baton serve --detach` has started; without NAME, the only one there is.

    Running requests may finish first, as after Ctrl-C. Returns once the server has ended. Fails if that takes 30 s
    longer than the server's drain timeout; `--force` then kills it. With `--all`, all servers are stopped at the same
    time. A process that is not a detached server of this
    user is never stopped.

    \b
    Examples:
    $ baton stop
    $ baton stop qwen --timeout-s 10
    $ baton stop --port 8001
    """
    if (name is not None) + (port is not None) + is_all > 1:
        raise click.UsageError("give one of NAME, --port and --all")
    if timeout_s is not None and math.isnan(timeout_s):
        raise click.UsageError("--timeout-s: nan is not a number of seconds")
    if force and timeout_s is not None:
        raise click.UsageError("give one of --timeout-s and --force, which waits for no request")
    try:
        chosen = _chosen(name, port, is_all)
    except OSError as failed:
        raise click.ClickException(str(failed)) from failed
    if not chosen:
        click.echo("No detached server runs")
    wait_s = 0.0 if force else timeout_s
    if failures := _stop_all(chosen, wait_s):
        raise click.ClickException("\n".join(failures))


def _chosen(name: str | None, port: int | None, is_all: bool) -> list[ServerFolder]:
    """Return the servers to stop. Raises ClickException if there is none, or no single one, and OSError."""
    if name is not None:
        if NAME.fullmatch(name) is None:
            raise click.UsageError(f"NAME: {name!r} is not allowed; it must be {NAME_RULE}")
        return [ServerFolder.named(name, os.environ)]
    found = server_folders(os.environ)
    if port is not None:
        found = [each for each in found if (record := each.record()) is not None and record.port == port]
        if not found:
            raise click.ClickException(f"no detached server has port {port}; `baton ps` lists all")
    running = [each for each in found if each.holder() is not None]
    if is_all:
        return running
    if len(running) > 1:
        raise click.ClickException(f"give one of {', '.join(each.name for each in running)}, or --all")
    if not found:
        raise click.ClickException("no detached server runs; Ctrl-C or SIGTERM stops others")
    return running or found[:1]


def _stop_all(folders: Sequence[ServerFolder], timeout_s: float | None) -> list[str]:
    """Stop servers at the same time, so that all have the same deadline; return the errors."""
    results: SimpleQueue[str | Exception | None] = SimpleQueue()

    def stop(folder: ServerFolder) -> None:
        try:
            results.put(_stop(folder, timeout_s))
        except Exception as error:
            results.put(error)

    for folder in folders:
        Thread(target=stop, args=(folder,), daemon=True).start()  # a daemon does not outlive Ctrl-C
    failures = []
    for _ in folders:
        result = results.get()
        if isinstance(result, Exception):
            raise result
        if result is not None:
            failures.append(result)
    return failures


def _stop(folder: ServerFolder, timeout_s: float | None) -> str | None:
    """Stop a server and print what was stopped; return the error if it was not."""
    record = folder.record()
    try:
        stopped = stop_server(folder, timeout_s)
    except NotRunning as error:
        return _not_running(folder, error)
    except (OutOfReach, StillRunning, OSError) as error:
        return str(error)
    what = f", which served {record.model} at {record.url}" if record is not None and record.url else ""
    cut = "; running requests were cut off" if stopped.was_cut else ""
    click.echo(f"Stopped {folder.name} (process {stopped.pid}){what}, in {stopped.took_s:.1f} s{cut}")
    return None


def _not_running(folder: ServerFolder, error: NotRunning) -> str:
    """Return the error, and remove the record if the server was killed."""
    try:
        left = folder.record()
        if left is None or folder.holder() is not None:  # it has shut down just now, or the name has a new server
            return f"{error}; `baton ps` lists all detached servers"
        folder.forget()
    except OSError as failed:
        return f"{error}: {failed}"
    return f"{error}: it was killed. Its log is {left.log_path}"

"""`baton logs`: the logs of a server's processes, filtered and in the order of time."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import rich_click as click

from baton.process.log_records import LogFile, LogFilter, LogRecord, in_order, since_time
from baton.process.logs import LOG_LEVELS

POLL_S = 0.25
POOLS = ("prefill", "decode", "both", "router")
SERVERS = Path("baton", "servers")  # below the state directory, a folder for each detached server
COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "bright_black"}


@click.command(name="logs")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.option("--worker", "workers", multiple=True, help="Only of the process with this name, such as decode-0.")
@click.option("--pool", "pools", multiple=True, type=click.Choice(POOLS), help="Only of processes with such names.")
@click.option("--level", type=click.Choice(LOG_LEVELS), default="debug", show_default=True, help="Lowest level.")
@click.option("--request-id", default="", help="Only lines that have this id, or a part of it.")
@click.option("--since", default="", metavar="TIME", help="Not older: 90s, 10m, 2h, 1d, or 2026-01-31T12:00 in UTC.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object.")
def command(
    paths: tuple[Path, ...],
    workers: tuple[str, ...],
    pools: tuple[str, ...],
    level: str,
    request_id: str,
    since: str,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the logs of a server on this machine.

    PATHS are log files, directories of them (`--log-dir` of `baton serve`), or `-` for standard input, such as the
    output of `kubectl logs`. Default: the logs of the detached server that wrote last.

    \b
    Examples:
    $ baton logs --level warning --since 10m
    $ baton logs logs/ --request-id chatcmpl-1234 --follow
    $ kubectl logs -l app.kubernetes.io/name=baton --all-containers | baton logs - --pool decode
    """
    try:
        begin = since_time(since, datetime.now(UTC)) if since else ""
    except ValueError as error:
        raise click.UsageError(f"--since: {since!r} is neither a duration such as 10m nor a time: {error}") from error
    wanted = LogFilter(level.upper(), frozenset(workers), frozenset(pools), request_id, begin)
    sources = paths or (newest_logs(os.environ),)
    if Path("-") in sources:
        if len(sources) > 1:
            raise click.UsageError("-: standard input cannot be read together with files")
        _print(LogFile("stdin", sys.stdin.buffer).records(), wanted, as_json)
        return
    with ExitStack() as stack:
        logs = _Logs(sources, stack)
        _print(in_order(file.records() for file in logs.files()), wanted, as_json)
        try:
            while follow:
                time.sleep(POLL_S)
                _print(in_order(file.records() for file in logs.files()), wanted, as_json)
        except KeyboardInterrupt:
            return


def newest_logs(environment: Mapping[str, str]) -> Path:
    """Return the directory of logs of the detached server that wrote last. Raises ClickException if there is none."""
    state = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    found = [path for path in (state / SERVERS).glob("*/logs") if log_files(path)]
    if not found:
        raise click.UsageError(
            f"there are no logs in {state / SERVERS}; name files or the directory that --log-dir of baton serve has"
        )
    return max(found, key=lambda path: max(file.stat().st_mtime for file in log_files(path)))


def log_files(path: Path) -> list[Path]:
    """Return the log files of a directory, or the file itself."""
    return sorted(path.glob("*.log")) if path.is_dir() else [path]


class _Logs:
    """The files of the given sources, those that appear later included."""

    def __init__(self, sources: Sequence[Path], stack: ExitStack) -> None:
        self._sources = sources
        self._stack = stack  # closes them
        self._open: dict[Path, LogFile] = {}

    def files(self) -> Iterator[LogFile]:
        """Yield all files."""
        for path in (file for source in self._sources for file in log_files(source)):
            if path not in self._open:
                self._open[path] = LogFile.open(path)
                self._stack.callback(self._open[path].close)
            self._open[path].restart(path.stat().st_size)
            yield self._open[path]


def _print(records: Iterator[LogRecord] | list[LogRecord], wanted: LogFilter, as_json: bool) -> None:
    for record in records:
        if not wanted.accepts(record):
            continue
        if as_json:
            fields = {name: value for name, value in asdict(record).items() if name != "line"}
            click.echo(json.dumps(fields, ensure_ascii=False))
        else:
            click.secho(record.line, fg=COLOURS.get(record.level))

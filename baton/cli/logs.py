"""`baton logs`: the logs of a server's processes, filtered and in the order of time."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import rich_click as click

from baton.deployment.local.detached.folder import SERVERS
from baton.process.log_record import LogFilter, LogRecord, since_time
from baton.process.log_records import GrowingFile, LogFile, Pipe, in_order
from baton.process.log_settings import LOG_LEVELS
from baton.process.state_directory import state_directory

POLL_S = 0.25
POOLS = ("prefill", "decode", "both", "router")
OLDER = "*.log.1"  # what a log had before it was shortened
NAMES = {"text": "message"}  # in JSON, as --log-format json has them
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
    """Show the logs of a server on this machine, written with either --log-format, or by Ray Serve as JSON.

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
        with suppress(KeyboardInterrupt):
            _print(_piped(sys.stdin.fileno()), wanted, as_json)
        return
    with closing(_Logs(sources)) as logs, suppress(KeyboardInterrupt):
        _print(logs.records(is_last=not follow), wanted, as_json)
        while follow:
            time.sleep(POLL_S)
            _print(logs.records(), wanted, as_json)


def _piped(fd: int) -> Iterator[LogRecord]:
    """Yield the records of a pipe as they are written."""
    pipe = Pipe(fd)
    file = LogFile("stdin", pipe)
    while pipe.is_open:
        yield from file.records()
    yield from file.records(is_last=True)


def newest_logs(environment: Mapping[str, str]) -> Path:
    """Return the directory of logs of the detached server that wrote last. Raises UsageError if there is none."""
    servers = state_directory(environment) / SERVERS
    found = [path for path in servers.glob("*/logs") if log_files(path)]
    if not found:
        raise click.UsageError(
            f"there are no logs in {servers}; name files or the directory that --log-dir of baton serve has"
        )
    return max(found, key=lambda path: max(map(_written_s, log_files(path))))


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it was removed, or is a dangling link
        return 0.0


def log_files(path: Path) -> list[Path]:
    """Return the log files of a directory, or the file itself."""
    return sorted(path.glob("*.log")) if path.is_dir() else [path]


class _Logs:
    """The files of the given sources, those that appear later included."""

    def __init__(self, sources: Sequence[Path]) -> None:
        self._sources = sources
        self._open: dict[Path, GrowingFile] = {}

    def records(self, *, is_last: bool = False) -> Iterator[LogRecord]:
        """Return the records that were written since the last call, in the order of time.

        `is_last`: nothing more will be read.
        """
        return in_order(self._records(is_last))

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()

    def _records(self, is_last: bool) -> Iterator[Iterable[LogRecord]]:
        """Yield the new records of each file."""
        older = [] if self._open else [file for source in self._sources for file in source.glob(OLDER)]
        for path in (*older, *(file for source in self._sources for file in log_files(source))):
            try:
                file = self._open.get(path)
                if file is not None and not file.follows(path):
                    yield list(file.records(is_last=True))  # the rest of the file that was replaced
                    self._open.pop(path).close()
                    file = None
                if file is None:
                    file = self._open[path] = GrowingFile(path)
            except FileNotFoundError:  # it is being replaced, or was removed
                continue
            except OSError as error:
                raise click.ClickException(f"cannot read {path}: {error.strerror}") from error
            yield file.records(is_last=is_last)


def _print(records: Iterable[LogRecord], wanted: LogFilter, as_json: bool) -> None:
    for record in records:
        if not wanted.accepts(record):
            continue
        if as_json:
            fields = {NAMES.get(name, name): value for name, value in asdict(record).items() if name != "line"}
            click.echo(json.dumps(fields, ensure_ascii=False))
        else:
            click.secho(record.line, fg=COLOURS.get(record.level))

"""`baton ps`: list the servers that `baton serve --detach` has started."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import rich_click as click

from baton.deployment.local.detached.folder import ServerFolder, server_folders

KILLED = "killed"
STARTING = "starting"
HEADER = ("NAME", "STATE", "PROCESS", "AGE", "URL", "MODEL", "LOG")


@dataclass(frozen=True, slots=True)
class ListedServer:
    """One detached server."""

    name: str
    state: str  # starting, ready, stopping, or killed: its process has ended without a shutdown
    pid: int | None
    url: str
    model: str
    age_s: float | None  # since its start
    log: str

    @classmethod
    def of(cls, folder: ServerFolder) -> "ListedServer":
        """Return the state of the server in a folder."""
        record, pid = folder.record(), folder.holder()
        if record is None:  # it has just taken its lock, or has a record of another version
            return cls(folder.name, STARTING if pid is not None else KILLED, pid, "", "", None, "")
        state = record.state if pid is not None else KILLED
        age_s = None if pid is None else round(time.time() - record.started_at_s, 1)
        return cls(folder.name, state, pid, record.url, record.model, age_s, record.log_path)

    def cells(self) -> tuple[str, ...]:
        """Return the texts below HEADER."""
        pid = "" if self.pid is None else str(self.pid)
        return (self.name, self.state, pid, _age(self.age_s), self.url, self.model, self.log)


@click.command(name="ps")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def command(as_json: bool) -> None:
    """List detached servers, which `baton serve --detach` has started.

    A server that was killed is listed until `baton stop`, or until a server with its name is started.
    """
    try:
        servers = [ListedServer.of(folder) for folder in server_folders(os.environ)]
    except OSError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps([asdict(each) for each in servers], indent=2))
    elif not servers:
        click.echo("No detached server runs", err=True)
    else:
        rows = [each.cells() for each in servers]
        for line in _aligned([HEADER, *rows]):
            click.echo(line)


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield a line for each row, with columns as wide as their longest cell; a terminal may wrap the last one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _age(age_s: float | None) -> str:
    """Return an age in its largest unit."""
    if age_s is None:
        return ""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= length_s:
            return f"{age_s // length_s:.0f} {unit}"
    return f"{max(0.0, age_s):.0f} s"

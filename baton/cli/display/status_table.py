"""The state of a router's workers, read from its /workers, as a table."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how early it goes when the terminal is narrow (0: never)."""

    title: str
    goes: int = 0
    right: bool = True


COLUMNS = (
    Column("worker", right=False),
    Column("role", 6, right=False),
    Column("state", right=False),
    Column("address", 5, right=False),
    Column("running"),
    Column("waiting"),
    Column("queued tokens", 4),
    Column("free KV"),
    Column("cached", 3),
    Column("step", 2),
    Column("handovers"),
    Column("failed", 1),
)
GAP = 2  # characters between columns


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker as the router says; what it does not say is empty."""

    worker: Mapping[str, object]

    def text(self, name: str) -> str:
        """A field of the worker itself."""
        value = self.worker.get(name)
        return "" if value is None else str(value)

    def load(self, name: str) -> str:
        """A field of its load."""
        load = self.worker.get("load")
        value = load.get(name) if isinstance(load, Mapping) else None
        return "" if value is None else str(value)

    def step(self) -> str:
        """Recent time of an engine step."""
        step_s = self.load("step_s")
        return f"{float(step_s) * 1000:.1f} ms" if step_s else ""

    def free_share(self) -> str:
        """Share of the pool's blocks that an allocation could take."""
        free, total = self.load("num_free_blocks"), self.load("num_blocks")
        return f"{100 * int(free) / int(total):.0f}%" if free and total and int(total) else free

    def transports(self) -> list[str]:
        """The transports in use and why, each once."""
        peers = self.worker.get("peer_transports")
        return list(dict.fromkeys(str(transport) for transport in peers.values())) if isinstance(peers, Mapping) else []

    def cells(self) -> list[str]:
        """A cell for each of COLUMNS."""
        failures = [value for value in (self.load("handover_failures"), self.load("checksum_failures")) if value]
        return [
            self.text("worker_id") or self.text("address"),  # a worker that never answered has no name yet
            *(self.text(name) for name in ("role", "state", "address")),
            *(self.load(name) for name in ("num_running", "num_waiting", "num_queued_tokens")),
            self.free_share(),
            self.text("cached_blocks"),
            self.step(),
            self.load("handovers"),
            str(sum(int(value) for value in failures)) if failures else "",
        ]


def worker_rows(content: object) -> list[WorkerRow]:
    """The workers of a /workers answer. Raises ValueError if it is none."""
    match content:
        case {"workers": list() as workers} if all(isinstance(worker, Mapping) for worker in workers):
            return [WorkerRow(worker) for worker in workers]
    raise ValueError("the answer has no list of workers")


def status_table(rows: list[WorkerRow], width: int) -> Table:
    """The workers as a table of at most `width` characters, if the columns that never go fit into it."""
    cells = [row.cells() for row in rows]
    widths = [max(len(column.title), *(len(line[i]) for line in cells), 0) for i, column in enumerate(COLUMNS)]
    shown = [i for i, column in enumerate(COLUMNS) if not column.goes or any(line[i] for line in cells)]
    for index in sorted((i for i in shown if COLUMNS[i].goes), key=lambda i: -COLUMNS[i].goes):
        if sum(widths[i] + GAP for i in shown) > width:
            shown.remove(index)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in shown:
        column = COLUMNS[index]
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for line in cells:
        table.add_row(*(line[index] for index in shown))
    return table


def transport_lines(rows: list[WorkerRow]) -> list[str]:
    """How each worker reads KV from its peers, and why so."""
    return [f"{row.text('worker_id')}: KV over {transport}" for row in rows for transport in row.transports()]

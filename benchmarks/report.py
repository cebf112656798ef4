"""Table of benchmark results."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import MachineInfo, describe

Cell = str | float | int


@dataclass(slots=True)
class Report:
    """A table of results; every row has a cell for each column."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: MachineInfo = field(default_factory=describe)

    def add(self, *cells: Cell) -> None:
        """Add a row."""
        assert len(cells) == len(self.columns)
        self.rows.append(list(cells))

    def show(self) -> None:
        """Print the table, the machine and the notes."""
        table = Table(title=self.title)
        for index, column in enumerate(self.columns):
            numeric = bool(self.rows) and not isinstance(self.rows[0][index], str)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(_format, row))
        console = Console(width=None if Console().is_terminal else 160)
        console.print(table)
        console.print(
            f"{self.machine.cpu}, {self.machine.num_cores} cores, torch {self.machine.torch}", highlight=False
        )
        for note in self.notes:
            console.print(note, highlight=False)

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        result = {
            "title": self.title,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": asdict(self.machine),
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "notes": self.notes,
        }
        path.write_text(json.dumps(result, indent=1) + "\n")


def _format(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:,.3g}" if abs(cell) < 100 else f"{cell:,.0f}"
    return str(cell)

"""Outcomes of the requests, by fault and phase."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.report import Cell, Report

COLUMNS = ("process", "fault", "phase", "tries", "disturbed", "failed", "wrong", "leaked", "recovery p50 s", "p99 s",
           "max s")  # fmt: skip


@dataclass(slots=True)
class Row:
    """The counts of all tries of a fault in a phase."""

    role: str
    fault: str
    phase: str
    tries: int = 0
    disturbed: int = 0  # requests in flight at the fault
    failed: int = 0
    wrong: int = 0
    leaked: int = 0  # tries after which a worker held a block or a request
    recovery_s: list[float] = field(default_factory=list)  # from the fault to the next token of each disturbed request
    notes: list[str] = field(default_factory=list)  # descriptions of failures

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost."""
        return not (self.failed or self.wrong or self.leaked)

    def add(self, other: "Row") -> None:
        """Add another row's counts."""
        self.tries += other.tries
        self.disturbed += other.disturbed
        self.failed += other.failed
        self.wrong += other.wrong
        self.leaked += other.leaked
        self.recovery_s += other.recovery_s

    def cells(self) -> list[Cell]:
        """Return a cell for each of COLUMNS."""
        times: list[Cell] = [round(percentile(self.recovery_s, share), 2) for share in (50, 99, 100) if self.recovery_s]
        counts = (self.tries, self.disturbed, self.failed, self.wrong, self.leaked)
        return [self.role, self.fault, self.phase, *counts, *(times or ("", "", ""))]


def make_report(rows: Sequence[Row]) -> Report:
    """Build a report of the rows, the sum for each fault, and the total."""
    report = Report("Faults, and what became of the requests", COLUMNS)
    total = Row("", "all", "")
    for row in rows:
        report.add(*row.cells())
        total.add(row)
    for role, fault in dict.fromkeys((row.role, row.fault) for row in rows):
        subtotal = Row(role, fault, "all")
        for row in rows:
            if (row.role, row.fault) == (role, fault):
                subtotal.add(row)
        report.add(*subtotal.cells())
    report.add(*total.cells())
    report.notes.append("Four requests at a time. Recovery: from the fault to the next token of a request under way.")
    report.notes.append("Of one that is cancelled alone: until every block of every worker is known to be free.")
    report.notes.append("Of routers lost in turn, and of attacks: the longest pause of each stream.")
    return report


def percentile(values: Sequence[float], share: int) -> float:
    """Return the `share`th percentile of the values."""
    return sorted(values)[min(len(values) - 1, len(values) * share // 100)]

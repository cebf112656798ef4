"""A stage of the check: what it is told, and what it writes down as it goes."""

import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.gpu.closeness import Closeness, Limits

Cell = str | float | int


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a stage runs, and how thoroughly."""

    device: torch.device
    is_quick: bool  # tiny shapes, to see that it runs
    directory: Path  # for its files; a shared one, so that a checkpoint is made once

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: bf16 on a GPU; on a CPU fp32, so that any deviation is a mistake."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def dtype_name(self) -> str:
        """The same as an engine's option."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison, or one fact that must be true."""

    case: str
    ok: bool
    detail: str


@dataclass(slots=True)
class Record:
    """What a stage found, written to its file after every addition: of one that is killed the rest is known."""

    path: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    rows: list[dict[str, Cell]] = field(default_factory=list)  # of the stage's table
    notes: list[str] = field(default_factory=list)
    is_finished: bool = False
    started_s: float = field(default_factory=time.monotonic)

    def find(self, case: str, ok: bool, detail: str) -> None:
        """Adds a finding."""
        self.findings.append(Finding(case, bool(ok), detail))
        self.write()

    def compare(self, case: str, result: torch.Tensor, reference: torch.Tensor, limits: Limits) -> None:
        """Adds a comparison of tensors."""
        closeness = Closeness.of(result, reference)
        detail = f"cosine {closeness.cosine:.6f}, error {closeness.error:.2g}, largest {closeness.max_error:.2g}"
        self.find(case, limits.admit(closeness), detail)

    def attempt(self, case: str, check: Callable[[], None]) -> None:
        """Runs a check whose failure is a finding, behind which the next one is tried."""
        try:
            check()
        except Exception as error:
            self.find(case, False, "".join(traceback.format_exception(error)[-2:]).strip())

    def add_row(self, columns: Sequence[str], *cells: Cell) -> None:
        """Adds a row of measurements."""
        self.rows.append(dict(zip(columns, cells, strict=True)))
        self.write()

    def note(self, text: str) -> None:
        """Adds a sentence that belongs beside the results."""
        self.notes.append(text)
        self.write()

    @property
    def is_right(self) -> bool:
        """Whether all of it was done and is as it should be."""
        return self.is_finished and all(finding.ok for finding in self.findings)

    def write(self) -> None:
        """Puts the file in place in one step."""
        if self.path is None:
            return
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        os.replace(unfinished, self.path)

    def as_json(self) -> dict[str, object]:
        """As it is kept."""
        return {
            "ok": self.is_right,
            "finished": self.is_finished,
            "seconds": round(time.monotonic() - self.started_s, 1),
            "findings": [asdict(finding) for finding in self.findings],
            "rows": self.rows,
            "notes": self.notes,
        }

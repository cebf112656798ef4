"""Settings and record of one stage of the check."""

import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.gpu.numerics.closeness import Closeness, Limits

Cell = str | float | int


@dataclass(frozen=True, slots=True)
class Setting:
    """Device and size of a stage."""

    device: torch.device
    is_quick: bool  # tiny shapes, as a smoke test
    directory: Path  # for files, shared by all stages

    @property
    def dtype(self) -> torch.dtype:
        """Compute dtype: bf16 on a GPU; fp32 on a CPU, so that any deviation is an error."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def dtype_name(self) -> str:
        """Name of the compute dtype, as an engine option."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one comparison or check."""

    case: str
    ok: bool
    detail: str


@dataclass(slots=True)
class Record:
    """Findings of a stage, written to its file after every addition, so that those of a killed stage survive."""

    path: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    rows: list[dict[str, Cell]] = field(default_factory=list)  # of the stage's table
    notes: list[str] = field(default_factory=list)
    is_finished: bool = False
    started_s: float = field(default_factory=time.monotonic)

    def find(self, case: str, ok: bool, detail: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(case, bool(ok), detail))
        self.write()

    def compare(self, case: str, result: torch.Tensor, reference: torch.Tensor, limits: Limits) -> None:
        """Add a comparison of tensors."""
        closeness = Closeness.of(result, reference)
        detail = f"cosine {closeness.cosine:.6f}, error {closeness.error:.2g}, largest {closeness.max_error:.2g}"
        self.find(case, limits.admit(closeness), detail)

    def attempt(self, case: str, check: Callable[[], None]) -> None:
        """Run a check; an exception becomes a failed finding, and the next check runs."""
        try:
            check()
        except Exception as error:
            self.find(case, False, "".join(traceback.format_exception(error)[-2:]).strip())

    def add_row(self, columns: Sequence[str], *cells: Cell) -> None:
        """Add a row of measurements."""
        self.rows.append(dict(zip(columns, cells, strict=True)))
        self.write()

    def note(self, text: str) -> None:
        """Add a note to the results."""
        self.notes.append(text)
        self.write()

    @property
    def is_right(self) -> bool:
        """Whether the stage is complete and all findings are good."""
        return self.is_finished and all(finding.ok for finding in self.findings)

    def write(self) -> None:
        """Write the file atomically."""
        if self.path is None:
            return
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        os.replace(unfinished, self.path)

    def as_json(self) -> dict[str, object]:
        """Return the record as JSON."""
        return {
            "ok": self.is_right,
            "finished": self.is_finished,
            "seconds": round(time.monotonic() - self.started_s, 1),
            "findings": [asdict(finding) for finding in self.findings],
            "rows": self.rows,
            "notes": self.notes,
        }

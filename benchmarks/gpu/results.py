"""Results of stages: the file into which each run is merged, and their tables."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import GpuMachine
from benchmarks.report import Report

MAX_WRONG = 20  # failed findings to print
MAX_KEPT = 50  # findings of a stage in the file; of more, only the failed ones


def merge(path: Path, machine: GpuMachine, stage: str, result: Mapping[str, Any]) -> None:
    """Replace an earlier result of this stage; each result has its time and machine.

    The file is replaced as a whole, so that an interrupted check leaves the earlier results; several checks may run at
    once.
    """
    when, findings = datetime.now(UTC).isoformat(timespec="seconds"), result["findings"]
    entry = {
        "when": when,
        "machine": asdict(machine),
        **result,
        "num_findings": len(findings),
        "findings": findings if len(findings) <= MAX_KEPT else [each for each in findings if not each["ok"]],
    }
    with _locked(path.parent):
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"stages": {}}
        kept["stages"][stage] = entry
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(kept, indent=1) + "\n")
        os.replace(unfinished, path)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one thread at a time, of all processes, change the files of a directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def show(name: str, result: dict[str, Any]) -> None:
    """Print the failed findings, the table if there is one, and the notes."""
    findings: list[dict[str, Any]] = result["findings"]
    wrong = [finding for finding in findings if not finding["ok"]]
    verdict = "right" if result["ok"] else "WRONG"
    print(f"{name}: {verdict}, {len(findings) - len(wrong)} of {len(findings)} findings, {result['seconds']:.0f} s")
    for finding in wrong[:MAX_WRONG]:
        print(f"  {finding['case']}: {finding['detail']}")
    if len(wrong) > MAX_WRONG:
        print(f"  and {len(wrong) - MAX_WRONG} more")
    if not result["ok"]:
        print(f"  {result.get('error', 'its log ends with:')}\n{result['log']}")
    if result["rows"]:
        report = Report(name, list(result["rows"][0]))
        for row in result["rows"]:
            report.add(*row.values())
        report.show()
    for note in result["notes"]:
        print(f"  {note}", flush=True)

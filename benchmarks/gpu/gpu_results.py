"""Results file, into which each run is merged."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import GpuMachine


def merge(path: Path, machine: GpuMachine, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace earlier results of these stages; each result has its time and machine."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"stages": {}}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    for name, result in results.items():
        kept["stages"][name] = {"when": when, "machine": asdict(machine), **result}
    path.write_text(json.dumps(kept, indent=1) + "\n")

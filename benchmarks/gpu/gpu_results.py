"""The file of results, into which each run's are merged."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import GpuMachine


def merge(path: Path, machine: GpuMachine, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts these stages' results in place of earlier ones; each says when and where it ran."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"stages": {}}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    for name, result in results.items():
        kept["stages"][name] = {"when": when, "machine": asdict(machine), **result}
    path.write_text(json.dumps(kept, indent=1) + "\n")

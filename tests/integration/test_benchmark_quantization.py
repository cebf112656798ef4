"""The benchmark of quantizations, for one of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_a_row_has_memory_and_accuracy(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.quantization", "--small", "--only", "KV in int4", "--json", report]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True)
    [row] = json.loads(report.read_text())["rows"]
    assert row["KV bytes/token"] == 4 * 2 * 8 * (128 // 2 + 4)  # layers, keys and values, heads
    assert 50 < row["perplexity"] < 100
    assert 0 < row["KL, bundled"] < 0.2
    assert 0 < row["KL, random"] < 1
    assert 80 < row["same greedy %"] < 100

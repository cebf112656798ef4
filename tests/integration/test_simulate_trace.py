"""The command `baton simulate`, with --trace and without, where it serves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton.simulation.study.json_report import FORMAT
from benchmarks.simulator import simulated_workers

TRACE = Path(__file__).parents[2] / "benchmarks" / "data" / "mooncake_conversation.csv"


def simulate(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "baton", "simulate", *flags], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
def test_a_trace_is_simulated_and_reported(tmp_path: Path) -> None:
    figures, page = tmp_path / "twin.json", tmp_path / "twin.html"
    flags = ("--slo", "ttft=2s,tpot=50ms", "--gpus", "4", "--autoscale", "--seconds", "60", "--start-s", "10")
    result = simulate("--trace", str(TRACE), *flags, "--json", str(figures), "--html", str(page))
    assert result.returncode == 0, result.stderr
    for label in ("autoscaled within 4", "best split: ", "4 colocated", "GPU-hours", "requests in"):
        assert label in result.stdout
    content = json.loads(figures.read_text())
    assert content["format"] == FORMAT
    assert content["slo"] == {"ttft_s": 2.0, "tpot_s": 0.05, "quantile": 0.95}
    assert content["asked"]["most_gpus"] <= 4
    assert page.read_text().count("<svg") == 5


@pytest.mark.slow
def test_a_fixed_split_and_worker_options(tmp_path: Path) -> None:
    figures, config = tmp_path / "twin.json", tmp_path / "config.yaml"
    config.write_text("prefill: 1\nspec:\n  step_s: 0.02\n  sequence_s: 0\n")
    common = ("--trace", str(TRACE), "--gpus", "3", "--seconds", "20", "--config", str(config), "--json", str(figures))
    result = simulate(*common, "--decode", "2", "--rate-scale", "0.5")
    assert result.returncode == 0, result.stderr
    content = json.loads(figures.read_text())
    assert content["asked"]["deployment"] == "1 prefill + 2 decode"
    assert content["asked"]["tpot_ms"]["min"] == pytest.approx(20.0)
    assert content["asked"]["gpu_hours"] == pytest.approx(3 * content["asked"]["ended_s"] / 3600)


async def test_the_benchmark_reports_that_its_workers_ended() -> None:
    """The simulation is given no workers."""
    with pytest.raises(RuntimeError, match="the simulated workers ended with status 2"):
        async with simulated_workers(0):
            pass


def test_workers_are_served_as_before() -> None:
    """Without --trace the command serves."""
    with subprocess.Popen(
        [sys.executable, "-m", "baton", "simulate", "--colocated=1", "--decode=1"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            reported = json.loads(process.stdout.readline())
        finally:
            process.terminate()
        assert process.wait(60) == 0
    assert [each["role"] for each in reported["workers"]] == ["decode", "both"]

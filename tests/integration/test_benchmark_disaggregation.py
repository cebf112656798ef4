"""The benchmark of colocated and disaggregated workers: its requests, and a small run."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from baton.loadtool.arrivals import TraceTimes
from baton.loadtool.errors import LoadToolError, SettingError
from baton.loadtool.slo import Slo
from baton.loadtool.target import Target
from benchmarks.disaggregation.__main__ import main
from benchmarks.disaggregation.client import Client
from benchmarks.disaggregation.comparison import Comparison
from benchmarks.disaggregation.system import COLOCATED, System
from benchmarks.disaggregation.trace import make_traces
from benchmarks.server import free_port


@pytest.mark.slow
async def test_the_priced_choice_under_mixed_prompts(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.disaggregation", f"--json={report}", "--only=mixed,priced", "--seconds=3",
        "--repeats=1", "--load=1",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)  # so that it ends its processes
            await process.wait()
    assert process.returncode == 0, output.decode()
    (row,) = json.loads(report.read_text())["rows"]
    assert (row["trace"], row["system"], row["errors"], row["of colocated"]) == ("mixed", "priced", 0, "")
    assert row["offered/s"] > 0  # goodput depends on the machine
    assert row["TTFT p50 ms"] <= row["TTFT p99 ms"]
    assert row["handed over %"] > 0


@pytest.mark.slow
async def test_a_system_without_responses_is_reported() -> None:
    trace = next(each for each in make_traces() if each.name == "mixed")
    console = Console(stderr=True)
    client = Client(Target(base_url=f"http://127.0.0.1:{free_port()}", takes_token_ids=True), console)

    @asynccontextmanager
    async def start(systems: Sequence[System], slo: Slo | None, console: Console) -> AsyncIterator[dict[str, Client]]:
        yield {system.name: client for system in systems}

    comparison = Comparison([COLOCATED], start, [trace], 0.1, 0.7, console)
    with pytest.raises(LoadToolError, match=r"mixed, colocated: no unloaded request was served; .*, as in: "):
        await comparison.measure(1)


def test_unknown_names_are_reported() -> None:
    result = CliRunner().invoke(main, ["--only=mixd"])
    assert result.exit_code == 2
    assert "mixd: known are always_remote, azure, colocated, completions" in " ".join(result.output.split())


@pytest.mark.slow
def test_traces_are_fitted_to_the_rate() -> None:
    for trace in make_traces():
        arrivals = trace.arrivals(rate_per_s=5.0, seconds=20.0)
        if isinstance(arrivals, TraceTimes):
            due = [request.due_s for request in islice(trace.dataset.requests(1), 101)]
            assert due[100] is not None
            assert due[100] * arrivals.time_scale == pytest.approx(20.0)
            with pytest.raises(SettingError, match=f"{trace.name} has no 3000 requests"):
                trace.arrivals(rate_per_s=100.0, seconds=30.0)
        else:
            assert arrivals.per_s == 5.0


def test_mixed_prompts_alternate_and_share_no_prefix() -> None:
    trace = next(each for each in make_traces() if each.name == "mixed")
    requests = list(islice(trace.dataset.requests(1), 20)) + list(islice(trace.dataset.requests(2), 20))
    assert [len(request.prompt) > 1000 for request in requests] == [True, False] * 20
    assert [request.num_output_tokens > 100 for request in requests] == [False, True] * 20
    assert len({tuple(request.prompt[:8]) for request in requests}) == 40


def test_completions_share_the_tops_of_their_files_within_a_run() -> None:
    trace = next(each for each in make_traces() if each.name == "completions")
    first, second = (list(islice(trace.dataset.requests(seed), 100)) for seed in (1, 2))
    tops = [{tuple(request.prompt[:512]) for request in requests} for requests in (first, second)]
    assert 10 < len(tops[0]) <= 16
    assert not tops[0] & tops[1]
    assert len({tuple(request.prompt[:640]) for request in first}) == 100
    assert all(4 <= request.num_output_tokens <= 28 and len(request.prompt) > 660 for request in first)

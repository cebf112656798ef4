"""Split pools compared with the same number of colocated workers, by `baton simulate --trace`.

    python -m benchmarks.separation [--json FILE] [--only TRACE] [--seconds S]

Each cell runs `baton simulate` once with each token budget of a step. A row has the budget with the most requests
within the SLO, so that each deployment has its best setting. Times are virtual: the speed of this machine does not
matter.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.report import Report

DATA = Path("benchmarks") / "data"
TOKEN_BUDGETS = (512, 2048)
COLUMNS = (
    *("trace", "SLO", "GPUs", "rate scale", "offered/s", "deployment", "token budget", "good %", "goodput/s"),
    *("TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "handed over %"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A trace at a multiple of its rate, on a number of GPUs."""

    trace: str
    slo: str
    num_gpus: int
    rate_scale: float


AZURE, MOONCAKE = "azure_conv.csv", "mooncake_conversation.csv"
CELLS = (
    *(Cell(AZURE, "ttft=1s,tpot=20ms", 2, rate) for rate in (0.5, 1, 1.5, 2, 2.5)),
    *(Cell(AZURE, "ttft=1s,tpot=20ms", 8, rate) for rate in (2, 4, 6, 8, 10, 12)),
    *(Cell(AZURE, "ttft=1s,tpot=30ms", 8, rate) for rate in (4, 8, 10, 12, 14)),
    *(Cell(MOONCAKE, "ttft=4s,tpot=30ms", 8, rate) for rate in (0.25, 0.5, 0.75, 1, 1.5, 2, 3)),
    *(Cell(MOONCAKE, "ttft=4s,tpot=30ms", 20, rate) for rate in (0.5, 1, 1.5, 2)),
)


def commands(cell: Cell, seconds: float | None) -> Iterator[list[str]]:
    """Yield the arguments of `baton` for each token budget."""
    for budget in TOKEN_BUDGETS:
        yield [
            *("simulate", "--trace", str(DATA / cell.trace), "--slo", cell.slo, "--gpus", str(cell.num_gpus)),
            *("--rate-scale", str(cell.rate_scale), "--max-num-batched-tokens", str(budget)),
            *(("--seconds", str(seconds)) if seconds else ()),
        ]


def simulated(arguments: list[str]) -> dict[str, Any]:
    """Run `baton simulate --json` and return its results."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "baton", *arguments, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def add_cell(report: Report, cell: Cell, seconds: float | None) -> None:
    """Add a row for the best split and one for colocated workers, each with its better token budget."""
    runs = [(arguments, simulated(arguments)) for arguments in commands(cell, seconds)]
    for kind in ("best", "colocated"):
        arguments, figures = max(runs, key=lambda run: (run[1][kind]["num_good"], -run[1][kind]["tpot_ms"]["p99"]))
        outcome, num_requests = figures[kind], figures["num_requests"]
        report.add(
            *(
                cell.trace.partition("_")[0],
                cell.slo,
                cell.num_gpus,
                cell.rate_scale,
                num_requests * outcome["goodput_per_s"] / outcome["num_good"],
            ),
            *(outcome["deployment"], int(arguments[arguments.index("--max-num-batched-tokens") + 1])),
            *(100 * outcome["num_good"] / num_requests, outcome["goodput_per_s"]),
            *(outcome[times][quantile] for times in ("ttft_ms", "tpot_ms") for quantile in ("p50", "p99")),
            100 * outcome["remote_share"],
        )


@click.command()
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the results as JSON.")
@click.option("--only", type=click.Choice(["azure", "mooncake"]), help="Only this trace.")
@click.option("--seconds", type=float, help="Only the first seconds of the trace.")
def main(json_path: Path | None, only: str | None, seconds: float | None) -> None:
    """Compare split pools with colocated workers in simulation."""
    report = Report("Split pools and colocated workers, simulated", COLUMNS)
    for cell in CELLS:
        if only is None or cell.trace.startswith(only):
            add_cell(report, cell, seconds)
    report.notes = [
        "a row: baton simulate --trace benchmarks/data/TRACE_*.csv --slo SLO --gpus GPUS --rate-scale RATE_SCALE "
        "--max-num-batched-tokens TOKEN_BUDGET",
        "workers: a step takes 10 ms, each sequence 0.1 ms more, prompts 20,000 tokens/s; blocks move at 10 GB/s",
        "best split: the one with the most good requests of all splits of these GPUs; budgets tried: 512 and 2,048",
    ]
    report.show()
    if json_path is not None:
        report.write(json_path)


if __name__ == "__main__":
    main()

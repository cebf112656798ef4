"""The planner compared with the best fixed splits in hindsight.

    python -m benchmarks.planner [--scenario NAME]... [--seeds N] [--verbose] [--json FILE]

Each scenario is simulated with the planner, from few replicas and with an ample budget, and with fixed splits. The
best fixed split of a number of GPUs is found by search with the whole trace, and has all its replicas from the start.

- `good / best fixed`: good requests of the planner, relative to the best fixed split with as many GPU-hours
- `GPU-hours / cheapest fixed`: GPU-hours of the planner, relative to the cheapest fixed split with as many good ones
- `oracle GPU-hours / cheapest fixed`: a bound, if the rate of each moment is known; empty where it is not
- `oracle good`, `oracle GPUs`: of pools that change to these sizes as soon as the rate does, with replicas that take as
  long to start as the planner's
- `settled`: the same without the first five minutes, in which the planner's replicas start; empty for shorter traces

Rows are printed as they are ready, and the JSON file has those that there are. Its rows of other traffic stay, and
`when` is the time of a row's run.
"""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import click
from rich.console import Console

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.router.policy.targets import Targets
from baton.simulation.study.runs import RunAll, run_at_once
from baton.simulation.twin.deployment_plan import DeploymentPlan
from benchmarks.planner.frontier import Comparison, Frontier, mean_gpus
from benchmarks.planner.oracle import oracle_gpus, oracle_run
from benchmarks.planner.scenarios import SCENARIOS, Scenario
from benchmarks.report import Cell, Report

BUDGET = 24  # GPUs
SETTLED_S = 300.0  # from the start
COLUMNS = (
    "traffic",
    "seed",
    "good",
    "GPUs",
    "best fixed",
    "good / best fixed",
    "cheapest fixed",
    "GPU-hours / cheapest fixed",
    "settled good",
    "settled GPUs",
    "settled good / best fixed",
    "settled GPU-hours / cheapest fixed",
    "oracle GPU-hours / cheapest fixed",
    "oracle good",
    "oracle GPUs",
    "when",
)
MEANS = [place for place, column in enumerate(COLUMNS) if "/" in column]


def compare(scenario: Scenario, seed: int, run_all: RunAll, report: Report, *, is_verbose: bool) -> None:
    """Add a row for one trace."""
    requests = scenario.requests(seed)
    targets = Targets(scenario.slo.ttft_s, scenario.slo.tpot_s)
    base = DeploymentPlan(machine=scenario.machine, targets=targets, seed=seed)
    scaling = ScalingSettings(budget_gpus=BUDGET, slo=scenario.slo, start_s=base.start_s)
    planned = replace(base, prefill=scenario.start, decode=scenario.start, scaling=scaling)
    outcome = run_all([planned], requests)[0]
    frontier = Frontier(base, requests, scenario.slo, run_all)
    whole = frontier.compare(outcome, since_s=0.0)
    settled: tuple[Cell, ...] = ("",) * 4
    if any(record.due_s >= SETTLED_S for record in outcome.records):
        settled = _figures(frontier.compare(outcome, since_s=SETTLED_S))
    good, num_gpus, to_best, to_cheapest = _figures(whole)
    oracle: tuple[Cell, ...] = ("",) * 3
    if scenario.workload is not None:
        bound = oracle_gpus(scenario.workload, scenario.machine.spec, scenario.slo, BUDGET)
        timed = oracle_run(base, scenario.workload, requests, scenario.slo, BUDGET)
        good_share = timed.num_good(scenario.slo) / len(timed.records)
        oracle = bound / whole.cheapest.plan.num_replicas, good_share, mean_gpus(timed, 0.0)
    report.add(
        scenario.name,
        seed,
        good,
        num_gpus,
        whole.best_good,
        to_best,
        whole.cheapest.plan.label,
        to_cheapest,
        *settled,
        *oracle,
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    Console(width=200).print(dict(zip(COLUMNS, report.rows[-1], strict=True)))
    if is_verbose:
        for sizes in outcome.sizes:
            print(f"{sizes.since_s:.0f} s: {sizes.ready.prefill} + {sizes.ready.decode} ready, {sizes.gpus}")
        for decision in outcome.decisions:
            print(decision)


def _figures(found: Comparison) -> tuple[float, float, float, float]:
    """Return good requests and GPUs, and both relative to the fixed splits."""
    to_cheapest = found.num_gpus / found.cheapest.plan.num_replicas
    return found.good, found.num_gpus, found.good / found.best_good, to_cheapest


@click.command(help=__doc__)
@click.option("--scenario", "names", multiple=True, type=click.Choice([each.name for each in SCENARIOS]))
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=len(os.sched_getaffinity(0)), help="Default: one a core.")
@click.option("--verbose", is_flag=True, help="Print all changes of the planner's sizes.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
def main(names: tuple[str, ...], seeds: int, processes: int, verbose: bool, json_file: Path | None) -> None:
    """Run all scenarios, and print the table."""
    chosen = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    report = Report("The planner and the best fixed splits in hindsight", COLUMNS)
    if json_file is not None and json_file.exists():
        others = {scenario.name for scenario in SCENARIOS} - {scenario.name for scenario in chosen}
        report.rows += earlier_rows(json_file, others)
    with run_at_once(processes) as run_all:
        for scenario in chosen:
            for seed in range(seeds):
                compare(scenario, seed, run_all, report, is_verbose=verbose)
                if json_file is not None:
                    write(report, json_file)
    write(report, json_file)
    report.show()


def earlier_rows(json_file: Path, traffic: set[str]) -> list[list[Cell]]:
    """Return the rows of this traffic from earlier runs; columns that these did not have are empty."""
    found = json.loads(json_file.read_text())
    rows = [{"when": found["when"]} | row for row in found["rows"] if row["traffic"] in traffic]
    return [[row.get(column, "") for column in COLUMNS] for row in rows]


def write(report: Report, json_file: Path | None) -> None:
    """Write the rows in the order of the scenarios, with the means of their ratios."""
    names = [scenario.name for scenario in SCENARIOS]
    report.rows.sort(key=lambda row: (names.index(str(row[0])), int(row[1])))
    report.notes.clear()
    for column in MEANS:
        values = [value for row in report.rows if isinstance(value := row[column], float)]
        if values:
            report.notes.append(f"{COLUMNS[column]}, mean: {mean(values):.3f}")
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()

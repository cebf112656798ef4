"""The planner compared with the best fixed splits in hindsight.

    python -m benchmarks.planner [--scenario NAME]... [--seeds N] [--verbose] [--json FILE]

Each scenario is simulated with the planner, from few replicas and with an ample budget, and with fixed splits. The
best fixed split of a number of GPUs is found by search with the whole trace, and has all its replicas from the start.

- `good / best fixed`: good requests of the planner, relative to the best fixed split with as many GPU-hours
- `GPU-hours / cheapest fixed`: GPU-hours of the planner, relative to the cheapest fixed split with as many good ones
"""

import os
from pathlib import Path
from statistics import mean

import click

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.simulation.study.runs import RunAll, run_at_once
from baton.simulation.twin.deployment_plan import DeploymentPlan
from benchmarks.planner.frontier import Frontier
from benchmarks.planner.scenarios import SCENARIOS, Scenario
from benchmarks.report import Report

BUDGET = 24  # GPUs
COLUMNS = (
    "traffic",
    "seed",
    "good",
    "GPUs",
    "best fixed",
    "good / best fixed",
    "cheapest fixed",
    "GPU-hours / cheapest fixed",
)


def compare(scenario: Scenario, seed: int, run_all: RunAll, report: Report, *, is_verbose: bool) -> None:
    """Add a row for one trace."""
    requests = scenario.requests(seed)
    base = DeploymentPlan(machine=scenario.machine, seed=seed)
    scaling = ScalingSettings(budget_gpus=BUDGET, slo=scenario.slo, start_s=base.start_s)
    planned = DeploymentPlan(
        machine=scenario.machine, seed=seed, prefill=scenario.start, decode=scenario.start, scaling=scaling
    )
    outcome = run_all([planned], requests)[0]
    good = outcome.num_good(scenario.slo) / len(requests)
    num_gpus = outcome.gpu_hours * 3600 / outcome.ended_s
    frontier = Frontier(base, requests, scenario.slo, run_all)
    best = frontier.good_share(num_gpus)
    cheapest = frontier.best(frontier.cheapest(good, round(num_gpus)))
    report.add(
        scenario.name,
        seed,
        good,
        num_gpus,
        best,
        good / best,
        cheapest.plan.label,
        outcome.gpu_hours / cheapest.gpu_hours,
    )
    if is_verbose:
        for sizes in outcome.sizes:
            print(f"{sizes.since_s:.0f} s: {sizes.ready.prefill} + {sizes.ready.decode} ready, {sizes.gpus}")
        for decision in outcome.decisions:
            print(decision)


@click.command(help=__doc__)
@click.option("--scenario", "names", multiple=True, type=click.Choice([each.name for each in SCENARIOS]))
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--verbose", is_flag=True, help="Print all changes of the planner's sizes.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
def main(names: tuple[str, ...], seeds: int, verbose: bool, json_file: Path | None) -> None:
    """Run all scenarios, and print the table."""
    report = Report("The planner and the best fixed splits in hindsight", COLUMNS)
    with run_at_once(len(os.sched_getaffinity(0))) as run_all:
        for scenario in SCENARIOS:
            if not names or scenario.name in names:
                for seed in range(seeds):
                    compare(scenario, seed, run_all, report, is_verbose=verbose)
    for column in (5, 7):
        values = [row[column] for row in report.rows]
        report.notes.append(
            f"{COLUMNS[column]}, mean: {mean(value for value in values if isinstance(value, float)):.3f}"
        )
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()

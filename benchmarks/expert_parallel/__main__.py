"""Cost and benefit of expert parallelism.

    python -m benchmarks.expert_parallel [--json FILE] [--model DIR] [--repeats N]

The first table has a decode step of 1, 2 and 4 ranks, each a process with one thread, at several batch sizes per rank:
the time spent waiting for other ranks, the bytes sent, and a prediction of their time on other links (bytes over
bandwidth, plus a latency for each collective). One rank has no group; it is the baseline for the same batch. The second
table has the balance of the experts' rows over the ranks for similar requests, with the initial placement and with a
placement by load (EPLB).
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from importlib.resources import files
from itertools import count
from pathlib import Path
from statistics import median

import click

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.expert_parallel.rank import Load, Measured, RankConfig
from benchmarks.expert_parallel.ranks import group_of
from benchmarks.report import Report

RANKS = (1, 2, 4)
BATCHES = (1, 4, 16)
NUM_TOKENS = 60
MANY_WORDS, FEW_WORDS = 500, 3
COLLECTIVES_PER_LAYER = 2  # for few tokens; larger batches need a third
NVLINK_BYTES_PER_S, NVLINK_S = 450e9, 8e-6  # H200: 900 GB/s bidirectional; approximate latency of a small collective
RDMA_BYTES_PER_S, RDMA_S = 50e9, 25e-6  # 400 Gb/s
STEP_COLUMNS = ("ranks", "batch a rank", "step ms", "one rank's ms", "ratio", "waiting %", "KB sent a rank",
                "on NVLink us (predicted)", "on RDMA us (predicted)")  # fmt: skip
BALANCE_COLUMNS = (
    "ranks",
    "placement",
    "redundant",
    "max/mean rows a rank",
    "step ms",
    "longest step of earlier loads ms",
)
REDUNDANT = 8


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the table of steps as JSON.")
@click.option("--balance-json", type=click.Path(path_type=Path), help="Write the table of balance as JSON.")
@click.option("--model", type=click.Path(path_type=Path), help="MoE checkpoint. Default: the bundled model.")
@click.option("--repeats", default=3, show_default=True)
def main(json_file: Path | None, balance_json: Path | None, model: Path | None, repeats: int) -> None:
    """Measure and print the tables."""
    directory = str(model or files("baton") / "bundled_model")
    config = RankConfig("", "", "bench", 1, directory)
    for report, path in (
        (asyncio.run(steps(config, repeats)), json_file),
        (asyncio.run(balances(config, repeats)), balance_json),
    ):
        report.show()
        if path is not None:
            report.write(path)


async def steps(config: RankConfig, repeats: int) -> Report:
    """Measure the table of steps; groups take turns."""
    found: defaultdict[tuple[int, int], list[Measured]] = defaultdict(list)
    seeds = count(1)
    for _ in range(repeats):
        for num_ranks in RANKS:
            async with group_of(config, num_ranks) as ranks:
                for batch in BATCHES:
                    load = Load(batch, NUM_TOKENS, MANY_WORDS, next(seeds))
                    found[num_ranks, batch] += await ranks.run(load)
    model = read_model_config(Path(config.model))
    num_layers = sum(map(model.is_sparse, range(model.num_layers)))
    report = Report("A decode step of an expert-parallel group", STEP_COLUMNS)
    for (num_ranks, batch), measured in found.items():
        step_s, alone_s = _median(measured, "step_s"), _median(found[1, batch], "step_s")
        num_bytes = _median(measured, "bytes_per_step")
        num_collectives = COLLECTIVES_PER_LAYER * num_layers if num_ranks > 1 else 0
        report.add(
            num_ranks,
            batch,
            step_s * 1000,
            alone_s * 1000,
            step_s / alone_s,
            100 * _median(measured, "waited_share"),
            num_bytes / 1000,
            1e6 * (num_bytes / NVLINK_BYTES_PER_S + num_collectives * NVLINK_S),
            1e6 * (num_bytes / RDMA_BYTES_PER_S + num_collectives * RDMA_S),
        )
    report.notes = [
        "Each rank is a process with one thread, and all share this machine's cores: with more ranks than cores they "
        "wait for each other.",
        "Predicted: the bytes that a rank sends over a link's bandwidth, and for each collective a latency (H200 with "
        "NVLink 450 GB/s and 8 us, RDMA 50 GB/s and 25 us). Neither was measured.",
        f"Runs of each: {repeats}.",
    ]
    return report


async def balances(config: RankConfig, repeats: int) -> Report:
    """Measure the table of balance."""
    report = Report("Balance of the experts' rows under a skewed load", BALANCE_COLUMNS)
    for num_ranks in (2, 4):
        for name, changed in (
            ("as at the start", config),
            ("by load", replace(config, enable_eplb=True)),
            ("by load", replace(config, enable_eplb=True, num_redundant_experts=REDUNDANT)),
        ):
            runs = [await _balance(changed, num_ranks, seed) for seed in range(repeats)]
            report.add(
                num_ranks,
                name,
                changed.num_redundant_experts,
                median(worst for worst, *_ in runs),
                median(step_s for _, step_s, _ in runs) * 1000,
                median(longest_s for *_, longest_s in runs) * 1000,
            )
    report.notes = [
        "Rows that the experts of a rank computed in the last of three equal loads. With 'by load', the first two "
        "determine the placement of the experts.",
        f"Runs of each: {repeats}.",
    ]
    return report


async def _balance(config: RankConfig, num_ranks: int, seed: int) -> tuple[float, float, float]:
    """Return the busiest rank's rows over the mean, the seconds per step, and those of the longest step before."""
    async with group_of(config, num_ranks) as ranks:
        load = Load(16, 2 * config.eplb_step_interval, FEW_WORDS, seed)
        before = [*await ranks.run(load), *await ranks.run(load)]
        measured = await ranks.run(load)
    rows = [each.rows_per_step for each in measured]
    longest_s = max(each.longest_step_s for each in before)
    return max(rows) * len(rows) / sum(rows), _median(measured, "step_s"), longest_s


def _median(measured: list[Measured], name: str) -> float:
    return median(float(getattr(each, name)) for each in measured)


if __name__ == "__main__":
    main()

"""Baton's engine compared with OpenVINO GenAI, vLLM, llama.cpp and transformers, each in a process, on the same cores.

    make engines-peers                                          once: the peers' environments
    python -m benchmarks.engines [--json FILE] [--series NAMES] [--only NAMES] [--prompts LENGTHS]
                                 [--concurrency NUMBERS] [--repeats N] [--threads N]
    python -m benchmarks.engines --profile                      Baton only: time profile of a decode step

Random weights with the shape of Qwen3-0.6B, and of a small mixture of experts. A number of clients each send a random
prompt, get 64 tokens, greedy, and send the next one. In a cell the engines take turns; a run during which other
processes used more than a few percent of the cores is discarded and repeated.
"""

import os
from pathlib import Path

import click

from benchmarks.engines.cells import CONCURRENCY, PROMPT_LENS, SERIES, Cell, Series, chosen_cells
from benchmarks.engines.checkpoint import DENSE, ensure_checkpoint
from benchmarks.engines.comparison import Comparison, Options
from benchmarks.engines.contestants import CONTESTANTS, contestants_by_name
from benchmarks.engines.engines_table import new_report
from benchmarks.engines.limits import measure_all_limits
from benchmarks.engines.profile import profile

CACHE = Path.home() / ".cache" / "baton" / "engines"


def _names(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        numbers = [int(name) for name in _names(context, parameter, value)]
    except ValueError as error:
        raise click.BadParameter(f"{value} must be whole numbers, comma-separated") from error
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{value} must be at least one number above 0")
    return numbers


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


@click.command()
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--series", default="", callback=_names,
              help=f"Series from {', '.join(each.name for each in SERIES)}. Default: all.")  # fmt: skip
@click.option("--only", default="", callback=_names,
              help=f"Engines from {', '.join(each.name for each in CONTESTANTS)}. Default: all.")  # fmt: skip
@click.option("--prompts", default=_joined(PROMPT_LENS), show_default=True, callback=_numbers, help="Tokens.")
@click.option("--concurrency", default=_joined(CONCURRENCY), show_default=True, callback=_numbers, help="Clients.")
@click.option("--repeats", default=3, show_default=True, help="Runs per engine and cell.")
@click.option("--retakes", default=3, show_default=True, help="Maximum repeats of a disturbed run.")
@click.option("--threads", default=2, show_default=True, help="Number of cores, starting at the first usable one.")
@click.option("--directory", default=CACHE / "models", show_default=True, type=click.Path(path_type=Path),
              help="Directory for checkpoints and converted models.")  # fmt: skip
@click.option("--peers", default=CACHE / "peers", show_default=True, type=click.Path(path_type=Path),
              help="Directory of the peers' environments.")  # fmt: skip
@click.option("--profile", "is_profile", is_flag=True, help="Only profile a decode step of Baton's engine.")
def main(
    json_file: Path | None, series: list[str], only: list[str], prompts: list[int], concurrency: list[int],
    repeats: int, retakes: int, threads: int, directory: Path, peers: Path, is_profile: bool,
) -> None:  # fmt: skip
    """Compare engines."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    if len(cores) < threads:
        raise click.BadParameter(f"{threads} requested, but only {len(cores)} cores are usable", param_hint="--threads")
    os.sched_setaffinity(0, cores)
    if is_profile:
        for report in profile(ensure_checkpoint(DENSE, directory), threads):
            report.show()
        return
    cells = chosen_cells(_series(series), prompts, concurrency)
    _compare(cells, only, Options(directory, peers, cores, repeats, retakes), json_file)


def _series(names: list[str]) -> list[Series]:
    known = {each.name: each for each in SERIES}
    if unknown := set(names) - known.keys():
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: only {', '.join(known)}", param_hint="--series")
    return [each for each in SERIES if not names or each.name in names]


def _compare(cells: list[Cell], only: list[str], options: Options, json_file: Path | None) -> None:
    try:
        contestants = contestants_by_name(only)
        for contestant in contestants:
            contestant.python(options.peers)
    except (ValueError, FileNotFoundError) as error:
        raise click.ClickException(str(error)) from error
    limits = measure_all_limits(len(options.cores))
    report = new_report(limits)
    comparison = Comparison(contestants, options, limits, report)
    for cell in cells:
        comparison.measure(cell)
        if json_file is not None:
            report.write(json_file)  # after each cell, because all of them take hours
    report.show()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.engines")

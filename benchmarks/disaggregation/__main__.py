"""Colocated serving, separate pools, and the cost model's choice between them, on two engine processes each.

    python -m benchmarks.disaggregation [--json FILE] [--seconds S] [--repeats N] [--load SHARE] [--only NAMES]

1. Every system is `baton serve` with the bundled model and two workers of one thread each. All systems run; one at a
   time is loaded.
2. For each trace, the SLO is the latency of an unloaded system times a constant. All systems are restarted with this
   SLO. A closed loop warms up every system and measures its capacity; all get `--load` times the best capacity.
3. In each repeat, the systems get the same requests at the same times, one system after the other.
4. A cell is the median over the repeats.
"""

from pathlib import Path

import click
import uvloop
from rich.console import Console

from baton.loadtool.errors import LoadToolError
from benchmarks.disaggregation.comparison import Comparison
from benchmarks.disaggregation.fleet import running
from benchmarks.disaggregation.system import SYSTEMS, System
from benchmarks.disaggregation.trace import Trace, make_traces
from benchmarks.report import Report


async def compare(systems: list[System], traces: list[Trace], seconds: float, repeats: int, load: float) -> Report:
    """Start the systems and run all cells."""
    console = Console(stderr=True, highlight=False)
    return await Comparison(systems, running, traces, seconds, load, console).measure(repeats)


@click.command()
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results as JSON.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Seconds of a run.")  # fmt: skip
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Runs per cell.")
@click.option("--load", default=0.4, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Offered load as a fraction of the best system's capacity.")  # fmt: skip
@click.option(
    "--only",
    default="",
    help="Systems or traces, comma-separated. Default: all.",
)
def main(path: Path | None, seconds: float, repeats: int, load: float, only: str) -> None:
    """Compare where prompts are prefilled."""
    traces = make_traces()
    names = {name.strip() for name in only.split(",") if name.strip()}
    known = {system.name for system in SYSTEMS} | {trace.name for trace in traces}
    if not names <= known:
        raise click.BadParameter(
            f"{', '.join(sorted(names - known))}: known are {', '.join(sorted(known))}", param_hint="--only"
        )
    systems = [system for system in SYSTEMS if system.name in names] or list(SYSTEMS)
    traces = [trace for trace in traces if trace.name in names] or traces
    try:
        report = uvloop.run(compare(systems, traces, seconds, repeats, load))
    except LoadToolError as error:
        raise click.ClickException(str(error)) from error
    report.show()
    if path is not None:
        report.write(path)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.disaggregation")

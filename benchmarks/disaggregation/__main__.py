"""Colocated serving, separate pools and the priced choice between them, on two engine processes each.

    python -m benchmarks.disaggregation [--json FILE] [--seconds S] [--repeats N] [--load SHARE] [--only NAMES]

1. Every system is `baton serve` with two workers of its own, of one thread each, and the bundled model. All are up, one
   at a time is asked.
2. For each trace, what an unloaded system takes, times a constant, is the limit of a good answer. All systems are
   started anew and told these limits. A closed loop warms every system up and measures what it sustains; `--load` of
   the best is offered to all.
3. In each repeat the systems get the same requests at the same times, one system after the other.
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
    """Starts the systems and runs everything."""
    console = Console(stderr=True, highlight=False)
    return await Comparison(systems, running, traces, seconds, load, console).measure(repeats)


@click.command()
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here too.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Length of a run.")  # fmt: skip
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Runs of each cell.")
@click.option("--load", default=0.4, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Offered, as a share of what the best system sustains.")  # fmt: skip
@click.option(
    "--only",
    default="",
    help="Names of systems or traces, with commas between; all of the kind of which none is named.",
)
def main(path: Path | None, seconds: float, repeats: int, load: float, only: str) -> None:
    """Compares where prompts are computed."""
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

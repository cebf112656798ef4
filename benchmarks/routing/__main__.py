"""Comparison of routers on the same simulated engines, on one machine.

    python -m benchmarks.routing [--json FILE] [--repeats N] [--seconds S] [--peers-env DIR] [--only NAMES]
                                [--cells NAME] [--part PART]

The first table compares routing decisions: a cell is the median of runs that are interleaved over the systems, each
with all processes restarted. All systems have the same simulated engines in one process behind their own worker
protocol, and get the same prompts at the same times. The engines count cache hits and busy time, the client measures
TTFT. The oracle knows every cache and queue, and takes no time.

The second table has the cost of the request path, with engines that respond at once.
"""

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.report import Report
from benchmarks.routing.contestants import COSTED, ROUTED, by_name
from benchmarks.routing.cost_table import CostTable
from benchmarks.routing.peers import ensure_environment
from benchmarks.routing.routing_table import RoutingTable
from benchmarks.routing.system import Setting, System, make_model

ROOT = Path(__file__).parents[2]
PEERS_FOLDER = Path.home() / ".cache" / "baton" / "peers"


@click.command()
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the first table as JSON, and the second next to it (_cost).",
)
@click.option("--repeats", default=3, show_default=True, help="Runs per cell.")
@click.option("--seconds", default=60.0, show_default=True, help="Seconds of a run of the first table.")
@click.option("--cost-seconds", default=5.0, show_default=True, help="Seconds of a measurement of the second table.")
@click.option("--peers-env", default=PEERS_FOLDER, show_default=True, type=click.Path(path_type=Path),
              help="Directory of the peers' environment; created if missing.")  # fmt: skip
@click.option("--only", default="", help="Systems, comma-separated. Default: all.")
@click.option("--cells", default="", help="Only cells of the first table whose name contains this, such as 'chat, 8'.")
@click.option("--part", type=click.Choice(["all", "routing", "cost"]), default="all", show_default=True)
def main(
    json_file: Path | None,
    repeats: int,
    seconds: float,
    cost_seconds: float,
    peers_env: Path,
    only: str,
    cells: str,
    part: str,
) -> None:
    """Compare routers."""
    python = ensure_environment(peers_env)
    gc.disable()  # a collection would distort the routers' times
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="routing-model-") as folder:
        setting = Setting(python, make_model(ROOT / "baton" / "bundled_model", Path(folder)))
        if part != "cost":
            reports[""] = _table(_systems(ROUTED, only), seconds, repeats, cells).measure(setting)
        if part != "routing":
            reports["_cost"] = CostTable(_systems(COSTED, only), cost_seconds, repeats).measure(setting)
    for suffix, report in reports.items():
        report.show()
        if json_file is not None:
            report.write(json_file.with_stem(json_file.stem + suffix))


def _table(systems: Sequence[System], seconds: float, repeats: int, cells: str) -> RoutingTable:
    try:
        return RoutingTable(systems, seconds, repeats, cells)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--cells") from error


def _systems(systems: Sequence[System], only: str) -> list[System]:
    try:
        return by_name(systems, only)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--only") from error


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.routing")

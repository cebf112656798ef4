"""Injects faults, by the thousand.

    python -m tests.faults --tries 15 --json FILE

Ends with status 1 if a request was lost, a token was wrong or a block leaked.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import click

from tests.faults.chaos import Chaos, chaos
from tests.faults.faults import FAULTS, PLACES, Fault
from tests.faults.places import one_machine, why_not
from tests.faults.row import Row, make_report

ROLLING = "rolling restart"
STORM = "a thousand cancels a minute"
NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 900, 40
NUM_CANCELS = 1000
SHARE_OF_LONG = 4  # a fault that lasts has one try where others have so many


async def run(tries: int, seed: int, only: str) -> list[Row]:
    """Every fault in every phase, so many times each."""
    rows: list[Row] = []
    for place in PLACES:
        faults = [fault for fault in FAULTS if fault.place is place and only in f"{fault.role} {fault.name}"]
        is_first = place is one_machine
        if not faults and not (is_first and only in f"{ROLLING} {STORM}"):
            continue
        if reason := why_not(place):
            click.echo(f"left out, since {reason}: {', '.join(f'{fault.role} {fault.name}' for fault in faults)}")
            continue
        with tempfile.TemporaryDirectory(prefix="baton-chaos-") as directory:
            async with chaos(place, Path(directory), seed, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS) as made:
                for fault in faults:
                    rows += await _run_fault(made, fault, max(1, tries // SHARE_OF_LONG) if fault.is_long else tries)
                if is_first and only in ROLLING:
                    rows.append(row := Row("all", ROLLING, ""))
                    await made.run_rolling_restart(row)
                    _tell(row)
                if is_first and only in STORM:
                    rows.append(row := Row("client", STORM, ""))
                    await made.run_cancel_storm(row, NUM_CANCELS)
                    _tell(row)
    return rows


async def _run_fault(made: Chaos, fault: Fault, tries: int) -> list[Row]:
    rows = [Row(fault.role, fault.name, phase) for phase in fault.phases]
    for row in rows:
        for _ in range(tries):
            await made.run_try(fault, row)
        _tell(row)
    return rows


def _tell(row: Row) -> None:
    click.echo(f"{row.role} {row.fault}, {row.phase}: {row.tries} tries, {len(row.notes)} not as wanted")
    for note in row.notes:
        click.echo(f"  {note[:1000]}")


@click.command()
@click.option("--tries", default=15, show_default=True, help="Of each fault in each phase.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", default="", help="Only faults with this in process and name, as in 'decode killed'.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the table here too.")
def main(tries: int, seed: int, only: str, json_file: Path | None) -> None:
    """Injects faults into a cluster of two routers, two prefill and two decode workers."""
    rows = asyncio.run(run(tries, seed, only))
    report = make_report(rows)
    report.show()
    if json_file is not None:
        report.write(json_file)
    sys.exit(0 if all(row.is_clean for row in rows) else 1)


if __name__ == "__main__":
    main()

"""Injects faults, by the thousand.

    python -m tests.faults --tries 15 --json FILE

Ends with status 1 if a request was lost, a token was wrong or a block leaked.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import click

from tests.faults.chaos import chaos
from tests.faults.faults import FAULTS
from tests.faults.row import Row, make_report

ROLLING = "rolling restart"
NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 900, 40


async def run(tries: int, seed: int, only: str) -> list[Row]:
    """Every fault in every phase, so many times each."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="baton-chaos-") as directory:
        async with chaos(Path(directory), seed, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS) as made:
            for fault in FAULTS:
                if only not in f"{fault.role} {fault.name}":
                    continue
                for phase in fault.phases:
                    row = Row(fault.role, fault.name, phase)
                    rows.append(row)
                    for _ in range(tries):
                        await made.run_try(fault, row)
                    click.echo(f"{fault.role} {fault.name}, {phase}: {row.tries} tries, {len(row.notes)} not as wanted")
                    _tell_notes(row)
            if only in ROLLING:
                rolling = Row("all", ROLLING, "")
                rows.append(rolling)
                await made.run_rolling_restart(rolling)
                _tell_notes(rolling)
    return rows


def _tell_notes(row: Row) -> None:
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

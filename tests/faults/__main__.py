"""Fault injection, by the thousand.

    python -m tests.faults --tries 15 --json FILE

Exits with status 1 if a request was lost, a token was wrong or a block leaked.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import click

from tests.faults.chaos import chaos
from tests.faults.faults import FAULTS, PLACES
from tests.faults.mixed_weights import mixed_weights
from tests.faults.ongoing import WHILE_STREAMS_RUN, attacks_on, run_attack, run_router_losses
from tests.faults.places import one_machine, resuming, why_not
from tests.faults.row import Row, make_report
from tests.faults.supervised import SUPERVISED_FAULTS, run_supervised

ROLLING = "rolling restart"
STORM = "a thousand cancels a minute"
MIXED = "half of them upgraded"
NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 900, 40
NUM_CANCELS = 1000
LOSSES_A_ROW = 20
SHARE_OF_LONG = 4  # tries of other faults per try of a long one


async def run(tries: int, seed: int, only: str) -> AsyncIterator[Row]:
    """Run every fault in every phase `tries` times, then a cluster of two checkpoints, and `baton serve`."""
    for place in PLACES:
        faults = [fault for fault in FAULTS if fault.place is place and only in f"{fault.role} {fault.name}"]
        storms = [row for row in (Row("all", ROLLING, ""), Row("client", STORM, "")) if only in row.fault]
        if not faults and not attacks_on(place, only) and not (storms and place is one_machine):
            continue
        if reason := why_not(place):
            click.echo(f"left out, since {reason}: {', '.join(f'{fault.role} {fault.name}' for fault in faults)}")
            continue
        with tempfile.TemporaryDirectory(prefix="baton-chaos-") as directory:
            async with chaos(place, Path(directory), seed, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS) as made:
                for fault in faults:
                    for phase in fault.phases:
                        row = Row(fault.role, fault.name, phase)
                        for _ in range(_num_tries(tries, fault.is_long)):
                            await made.run_try(fault, row)
                        yield row
                for attack in attacks_on(place, only):
                    row = Row(attack.role, attack.name, WHILE_STREAMS_RUN)
                    for _ in range(_num_tries(tries, attack.is_long)):
                        await run_attack(made, attack, row)
                    yield row
                for row in storms if place is one_machine else ():
                    if row.fault == ROLLING:
                        await made.run_rolling_restart(row)
                    else:
                        await made.run_cancel_storm(row, NUM_CANCELS)
                    yield row
                logs = Row("all", "errors in logs", place.__name__.replace("_", " "))
                made.read_logs(logs)
                yield logs
    if only in MIXED:
        with tempfile.TemporaryDirectory(prefix="baton-chaos-") as directory:
            async with mixed_weights(Path(directory), seed, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS) as mixed:
                row = Row("workers", MIXED, "")
                for _ in range(tries):
                    await mixed.run_try(row)
                yield row
    for fault in SUPERVISED_FAULTS:
        row = Row("baton serve", fault.__name__.replace("_", " "), "")
        if only in f"{row.role} {row.fault}":
            await run_supervised(fault, row, _num_tries(tries, is_long=True), seed)
            yield row


def _num_tries(tries: int, is_long: bool) -> int:
    return max(1, tries // SHARE_OF_LONG) if is_long else tries


async def lose_routers(num_losses: int, seed: int) -> AsyncIterator[Row]:
    """Lose routers one after the other under clients that resume."""
    with tempfile.TemporaryDirectory(prefix="baton-chaos-") as directory:
        async with chaos(resuming, Path(directory), seed, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS) as made:
            for first in range(0, num_losses, LOSSES_A_ROW):
                row = Row("router", "lost in turn", f"from {first} on")
                await run_router_losses(made, row, min(LOSSES_A_ROW, num_losses - first))
                click.echo(f"{len(row.recovery_s)} streams, resumed {row.disturbed} times, "
                           f"longest pause {max(row.recovery_s):.1f} s")  # fmt: skip
                yield row
            logs = Row("all", "errors in logs", "resuming")
            made.read_logs(logs)
            yield logs


async def run_all(made_rows: AsyncIterator[Row], json_file: Path | None) -> Sequence[Row]:
    """Collect all rows; show and write each as soon as it is complete."""
    rows: list[Row] = []
    async for row in made_rows:
        rows.append(row)
        click.echo(f"{row.role} {row.fault}, {row.phase}: {row.tries} tries, {len(row.notes)} not as wanted")
        for note in row.notes:
            click.echo(f"  {note[:1000]}")
        if json_file is not None:
            make_report(rows).write(json_file)
    return rows


@click.command()
@click.option("--tries", default=15, show_default=True, help="Of each fault in each phase.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", default="", help="Only faults with this in process and name, as in 'decode killed'.")
@click.option("--router-losses", default=0, help="Lose so many routers under clients that resume, and nothing else.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the table here too.")
def main(tries: int, seed: int, only: str, router_losses: int, json_file: Path | None) -> None:
    """Inject faults into a cluster of two routers, two prefill and two decode workers."""
    rows = asyncio.run(
        run_all(lose_routers(router_losses, seed) if router_losses else run(tries, seed, only), json_file)
    )
    if not rows:
        raise click.UsageError(f"--only {only!r} names no fault that can be made here")
    make_report(rows).show()
    sys.exit(0 if all(row.is_clean for row in rows) else 1)


if __name__ == "__main__":
    main()

"""`python -m baton.worker.ranks`: one follower rank, started by the worker's process on its node."""

from collections.abc import Coroutine

import click

from baton.process.entry import plain_errors
from baton.settings.names import Role
from baton.worker.command import run_worker, worker_command
from baton.worker.config import WorkerConfig

ROLES: tuple[Role, ...] = ("both", "prefill", "decode")


@click.command()
@click.option(
    "--rank", type=click.IntRange(min=1), required=True, help="Rank number in the worker; the first rank is 0."
)
@click.option("--leader", required=True, help="Address of the first rank, host:port or unix:PATH.")
@worker_command(ROLES)
@plain_errors
def main(rank: int, leader: str, **flags: object) -> None:
    """Run one follower rank: it executes the steps of its worker's first rank."""

    def start(config: WorkerConfig) -> Coroutine[object, object, None]:
        from baton.worker.ranks.follower import run

        return run(config, rank, leader)

    run_worker(flags, ROLES, start, rank)


if __name__ == "__main__":
    main(prog_name="python -m baton.worker.ranks")

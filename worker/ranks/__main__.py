"""`python -m baton.worker.ranks`: one rank that follows, as the worker's first rank starts it."""

from collections.abc import Coroutine

import click

from baton.process.entry import plain_errors
from baton.settings.worker_config import Role, WorkerConfig
from baton.worker.command import run_worker, worker_command

ROLES: tuple[Role, ...] = ("both", "prefill", "decode")


@click.command()
@click.option("--rank", type=click.IntRange(min=1), required=True, help="Its place among the worker's ranks.")
@click.option("--socket", required=True, help="Path of the Unix socket where it takes commands.")
@worker_command(ROLES)
@plain_errors
def main(rank: int, socket: str, **flags: object) -> None:
    """Computes what the first rank of its worker says."""

    def start(config: WorkerConfig) -> Coroutine[object, object, None]:
        from baton.worker.ranks.follower import run

        return run(config, rank, socket)

    run_worker(flags, ROLES, start)


if __name__ == "__main__":
    main(prog_name="python -m baton.worker.ranks")

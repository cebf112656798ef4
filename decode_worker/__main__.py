"""`python -m baton.decode_worker`: one decode worker in this process."""

from collections.abc import Coroutine

import click

from baton.process.entry import plain_errors
from baton.settings.worker_config import Role, WorkerConfig
from baton.worker.command import run_worker, worker_command

ROLES: tuple[Role, ...] = ("decode",)


def start(config: WorkerConfig) -> Coroutine[object, object, None]:
    """Makes the worker; imports torch only once the options are known to be good."""
    from baton.decode_worker.worker import run

    return run(config)


@click.command()
@worker_command(ROLES)
@plain_errors
def main(**flags: object) -> None:
    """Decodes what others have prefilled, and prefills what is left to it."""
    run_worker(flags, ROLES, start)


if __name__ == "__main__":
    main(prog_name="python -m baton.decode_worker")

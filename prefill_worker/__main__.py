"""`python -m baton.prefill_worker`: one prefill worker in this process."""

from collections.abc import Coroutine

import click

from baton.process.entry import plain_errors
from baton.settings.worker_config import Role, WorkerConfig
from baton.worker.command import run_worker, worker_command

ROLES: tuple[Role, ...] = ("prefill",)


def start(config: WorkerConfig) -> Coroutine[object, object, None]:
    """Makes the worker; imports torch only once the options are known to be good."""
    from baton.prefill_worker.worker import run

    return run(config)


@click.command()
@worker_command(ROLES)
@plain_errors
def main(**flags: object) -> None:
    """Computes prompts for decode workers."""
    run_worker(flags, ROLES, start)


if __name__ == "__main__":
    main(prog_name="python -m baton.prefill_worker")

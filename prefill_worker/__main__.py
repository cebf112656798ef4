"""`python -m baton.prefill_worker`: one prefill worker in this process."""

from collections.abc import Coroutine

import click

from baton.process.entry import plain_errors
from baton.settings.names import Role
from baton.worker.command import run_worker, worker_command
from baton.worker.config import WorkerConfig

ROLES: tuple[Role, ...] = ("prefill",)


def start(config: WorkerConfig) -> Coroutine[object, object, None]:
    """Return the worker's main coroutine. Torch is imported here, after the options have been validated."""
    from baton.prefill_worker.worker import run

    return run(config)


@click.command()
@worker_command(ROLES)
@plain_errors
def main(**flags: object) -> None:
    """Run a prefill worker: it computes prompts for decode workers."""
    run_worker(flags, ROLES, start)


if __name__ == "__main__":
    main(prog_name="python -m baton.prefill_worker")

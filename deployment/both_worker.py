"""`python -m deployment.both_worker`: one worker of the role `both`, which decodes and prefills for others too."""

from collections.abc import Coroutine

import click

from rpc.entry import plain_errors
from rpc.worker_command import run_worker, worker_command
from rpc.worker_config import Role, WorkerConfig

ROLES: tuple[Role, ...] = ("both",)


def start(config: WorkerConfig) -> Coroutine[object, object, None]:
    """Makes the worker; imports torch only once the options are known to be good."""
    from deployment.both_services import run

    return run(config)


@click.command()
@worker_command(ROLES)
@plain_errors
def main(**flags: object) -> None:
    """Prefills for others, and decodes."""
    run_worker(flags, ROLES, start)


if __name__ == "__main__":
    main(prog_name="python -m deployment.both_worker")

"""`python -m baton.membership.rendezvous`: one rendezvous in this process."""

from collections.abc import Coroutine

import click

from baton.membership.rendezvous.config import RENDEZVOUS_OPTIONS, RendezvousConfig
from baton.process.entry import plain_errors, process_flags, run_process, take_process_flags
from baton.settings.config_file import load
from baton.settings.options import click_options, options_of


def start(config: RendezvousConfig) -> Coroutine[object, object, None]:
    """Makes the rendezvous; imports gRPC only once the options are known to be good."""
    from baton.membership.rendezvous.app import run

    return run(config)


@click.command(name="rendezvous")
@click_options(options_of(RendezvousConfig, RENDEZVOUS_OPTIONS))
@process_flags
@plain_errors
def main(**flags: object) -> None:
    """Know who is in which group of workers that step together, and tell them."""
    process = take_process_flags(flags)
    config = load(RendezvousConfig, RENDEZVOUS_OPTIONS, process.config_file, flags)
    run_process(process.named("rendezvous", config.progress_fd), lambda: start(config))


if __name__ == "__main__":
    main(prog_name="python -m baton.membership.rendezvous")

"""`python -m baton.membership.rendezvous`: one rendezvous in this process."""

from collections.abc import Coroutine

import click

from baton.membership.rendezvous.config import RendezvousConfig
from baton.process.entry import plain_errors, process_flags, run_process, take_process_flags
from baton.process.log_format import LogSource
from baton.settings.config_file import load
from baton.settings.flags import click_options
from baton.settings.options import options_of


def start(config: RendezvousConfig) -> Coroutine[object, object, None]:
    """Return the rendezvous's main coroutine. gRPC is imported here, after the options have been validated."""
    from baton.membership.rendezvous.app import run

    return run(config)


@click.command(name="rendezvous")
@click_options(options_of(RendezvousConfig))
@process_flags
@plain_errors
def main(**flags: object) -> None:
    """Run a rendezvous: it tracks the members of groups of workers that step together."""
    process = take_process_flags(flags)
    config = load(RendezvousConfig, process.config_file, flags)
    run_process(process.of(LogSource("rendezvous", role="rendezvous"), config.progress_fd), lambda: start(config))


if __name__ == "__main__":
    main(prog_name="python -m baton.membership.rendezvous")

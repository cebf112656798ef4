"""`python -m baton.router`: one router in this process."""

import os
from collections.abc import Coroutine, Mapping

import click

from baton.process.entry import ProcessOptions, plain_errors, process_flags, run_process, take_process_flags
from baton.process.log_format import LogSource
from baton.router.config import RouterConfig
from baton.router.http.certificate import make_certificate
from baton.router.secrets import with_secrets
from baton.settings.config_file import load
from baton.settings.flags import click_options
from baton.settings.options import options_of
from baton.settings.values import OptionError


def read_config(process: ProcessOptions, flags: Mapping[str, object]) -> RouterConfig:
    """Return the config from a file, flags and the environment. Raises OptionError."""
    config = load(RouterConfig, process.config_file, with_secrets(flags, os.environ))
    if config.progress_fd is None:  # otherwise the router reports a wrong file to its supervisor when it starts
        make_certificate(config)  # reports a wrong file as a wrong option
    return config


def start(config: RouterConfig) -> Coroutine[object, object, None]:
    """Make the router. Imports the HTTP server and the tokenizer only after the options have been checked."""
    from baton.router.app import run

    return run(config)


def run_here(process: ProcessOptions, config: RouterConfig) -> None:
    """Run one router in this process until it ends."""
    name = "router" if config.process is None else f"router-{config.process}"
    run_process(process.of(LogSource(name, role="router"), config.progress_fd), lambda: start(config))


@click.command(name="router")
@click_options(options_of(RouterConfig))
@process_flags
@plain_errors
def main(**flags: object) -> None:
    """Serve OpenAI HTTP and gRPC requests by sending them to workers."""
    process = take_process_flags(flags)
    config = read_config(process, flags)
    if config.processes > 1 and config.process is None:
        raise OptionError("processes: this command runs a single process; use `baton router` to start several")
    run_here(process, config)


if __name__ == "__main__":
    main(prog_name="python -m baton.router")

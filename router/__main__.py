"""`python -m router`: one router in this process."""

from collections.abc import Coroutine

import click

from router.config import RouterConfig
from router.options import ROUTER_OPTIONS
from rpc.config_file import load
from rpc.entry import plain_errors, process_flags, run_process, take_process_flags
from rpc.options import click_options, options_of


def start(config: RouterConfig) -> Coroutine[object, object, None]:
    """Makes the router; imports the HTTP server and the tokenizer only once the options are known to be good."""
    from router.app import run

    return run(config)


@click.command(name="router")
@click_options(options_of(RouterConfig, ROUTER_OPTIONS))
@process_flags
@plain_errors
def main(**flags: object) -> None:
    """Takes OpenAI HTTP and gRPC requests and sends them to workers."""
    process = take_process_flags(flags)
    config = load(RouterConfig, ROUTER_OPTIONS, process.config_file, flags)
    run_process(process.named("router", config.progress_fd), lambda: start(config))


if __name__ == "__main__":
    main(prog_name="python -m router")

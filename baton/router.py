"""`baton router`: one router in this process, as `python -m router` runs it, or several that share its ports."""

import click

from deployment.router_group import run_group
from router.__main__ import read_config, run_here
from router.config import RouterConfig
from router.options import ROUTER_OPTIONS
from rpc.entry import plain_errors, process_flags, run_process, take_process_flags
from rpc.options import click_options, options_of


@click.command(name="router")
@click_options(options_of(RouterConfig, ROUTER_OPTIONS))
@process_flags
@plain_errors
def command(**flags: object) -> None:
    """Take OpenAI HTTP and gRPC requests and send them to workers."""
    process = take_process_flags(flags)
    config = read_config(process, flags)
    if config.processes == 1 or config.process is not None:
        run_here(process, config)
    else:
        run_process(process.named("routers", config.progress_fd), lambda: run_group(config, process.log_level))

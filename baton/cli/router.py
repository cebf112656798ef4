"""`baton router`: one router in this process, like `python -m baton.router`, or several that share its ports."""

import rich_click as click

from baton.cli.options.lora_modules import ModulesCommand
from baton.cli.options.model_argument import model_argument
from baton.cli.options.panels import option_panels
from baton.cli.options.vllm_flags import vllm_flags
from baton.deployment.local.router_group import run_group
from baton.process.entry import plain_errors, process_flags, run_process, take_process_flags
from baton.process.log_format import LogSource
from baton.router.__main__ import read_config, run_here
from baton.router.config import RouterConfig
from baton.settings.flags import click_options
from baton.settings.options import options_of
from baton.settings.values import OptionError


@click.command(name="router", cls=ModulesCommand)
@option_panels
@model_argument
@vllm_flags
@click_options(options_of(RouterConfig))
@process_flags
@plain_errors
def command(**flags: object) -> None:
    """Route OpenAI HTTP and gRPC requests to the workers of MODEL (a checkpoint directory).

    \b
    Examples:
    $ baton router /models/Qwen3-0.6B --workers 10.0.0.5:7000,10.0.0.6:7000
    $ baton router /models/Qwen3-0.6B --registry redis://cache:6379/0 --processes 4
    $ baton router /models/Qwen3-0.6B --registry redis://cache:6379/0 --also-serve /models/Qwen3-Embedding-0.6B
    """
    process = take_process_flags(flags)
    config = read_config(process, flags)
    if not config.workers and config.registry is None:
        raise OptionError(
            "workers: none given; set --workers HOST:PORT,..., or --registry to the Redis URL where they register"
        )
    if config.processes == 1 or config.process is not None:
        run_here(process, config)
    else:
        run_process(
            process.of(LogSource("routers", role="router"), config.progress_fd), lambda: run_group(config, process.log)
        )

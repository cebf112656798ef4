"""`baton simulate`: simulated workers in this process, or with --trace a whole deployment in virtual time."""

import rich_click as click

from baton.cli.options.model_argument import model_argument
from baton.cli.simulate_trace import TraceOptions, trace_flags
from baton.process.entry import plain_errors, process_flags, run_process, take_process_flags
from baton.process.log_format import LogSource
from baton.settings.config_file import load
from baton.settings.flags import click_options
from baton.settings.options import options_of
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import run
from baton.simulation.workers.config import SimulationConfig


@click.command(name="simulate")
@trace_flags
@model_argument
@click_options(options_of(SimulationConfig))
@click_options(options_of(WorkerSpec))
@process_flags
@plain_errors
def command(trace_options: TraceOptions | None, **flags: object) -> None:
    """Run simulated workers, or replay a trace on a simulated deployment.

    Simulated workers have no model: they run at the given speeds and derive output tokens from the prompt. With --trace
    nothing is served: the real routing and scaling code runs in virtual time and is compared with the best fixed split
    and with colocated workers.

    \b
    Examples:
    $ baton simulate --prefill 2 --decode 2
    $ baton simulate --trace trace.jsonl --slo ttft=1s,tpot=50ms --gpus 8 --autoscale
    """
    process = take_process_flags(flags)
    if trace_options is not None:
        trace_options.run(process.config_file, flags)
        return
    config = load(SimulationConfig, process.config_file, flags)
    run_process(process.of(LogSource("simulation"), config.progress_fd), lambda: run(config))

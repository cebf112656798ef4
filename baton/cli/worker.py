"""`baton worker`: one prefill, decode or colocated worker in this process."""

from collections.abc import Coroutine

import rich_click as click

from baton.cli.options.model_argument import model_argument
from baton.cli.options.panels import option_panels
from baton.cli.options.vllm_flags import vllm_flags
from baton.deployment.local.cluster_plan import check_experts
from baton.engine.checkpoint.model_config import model_config_of
from baton.process.entry import plain_errors
from baton.settings.names import Role
from baton.worker.command import run_worker, worker_command
from baton.worker.config import WorkerConfig

ROLES: tuple[Role, ...] = ("both", "prefill", "decode")


def start(config: WorkerConfig) -> Coroutine[object, object, None]:
    """Start the worker, in the config's role at first.

    Raises OptionError if the model lacks the experts for its parallelism.
    """
    if config.expert_parallel > 1:
        model = model_config_of(config.engine)
        check_experts(model, config.engine.model, config.expert_parallel)
    from baton.deployment.local.any_role_worker import run  # imports torch, after the options have been validated

    return run(config)


@click.command(name="worker")
@option_panels
@model_argument
@vllm_flags
@worker_command(ROLES)
@plain_errors
def command(**flags: object) -> None:
    """Run one worker of MODEL (a checkpoint directory) in this process, until SIGTERM or Ctrl-C.

    `baton role` changes its role later, without a restart.

    \b
    Examples:
    $ baton worker /models/Qwen3-0.6B --role prefill --port 7000
    $ baton worker --config worker.yaml
    """
    run_worker(flags, ROLES, start)

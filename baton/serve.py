"""`baton serve`: a whole cluster on this machine, until it is told to end."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import click

from baton.model_source import find_checkpoint
from baton.serve_display import ServeDisplay, open_display
from deployment.cluster_config import (
    ClusterSettings,
    cluster_options,
    engine_options,
    load_settings,
    router_options,
    worker_options,
)
from deployment.cluster_plan import ClusterPlan, plan_cluster
from deployment.local import LocalCluster
from deployment.machine import this_machine
from deployment.ports import PortInUse, check_port, free_ports
from deployment.process import ProcessSpec
from deployment.supervisor import GaveUp, RestartPolicy
from router.certificate import make_certificate
from router.options import with_secrets
from rpc.entry import log_level_flag, plain_errors
from rpc.options import click_options

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(name="serve")
@click.argument("model", required=False)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of options.",
)
@click_options(cluster_options(), leave_out=frozenset({"model"}))
@click_options(worker_options())
@click_options(router_options())
@click_options(engine_options())
@log_level_flag
@plain_errors
def command(config_file: Path | None, log_level: str, **flags: object) -> None:
    """Serve MODEL (a checkpoint directory or a Hugging Face id; by default the model that comes with Baton).

    Starts a router, prefill workers and decode workers as processes of this machine, starts again what dies, and ends
    them all on Ctrl-C (twice: at once).
    """
    settings = load_settings(config_file, with_secrets(flags, os.environ))
    plan = _plan(settings, log_level)
    log_dir, is_temporary = _log_dir(settings.cluster.log_dir)
    display = open_display(plan, log_dir)
    try:
        asyncio.run(_serve(plan, plan.specs(log_dir), display))
    except (GaveUp, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        display.close()
    if is_temporary:
        shutil.rmtree(log_dir)


def _plan(settings: ClusterSettings, log_level: str) -> ClusterPlan:
    cluster = settings.cluster
    dtype = str(settings.engine["decode"].get("dtype") or "auto")
    checkpoint = find_checkpoint(cluster.model, dtype)
    try:
        check_port(cluster.host, cluster.port)
        ports = free_ports("127.0.0.1", cluster.num_workers)
    except PortInUse as error:
        raise click.ClickException(f"{error}; choose another with --port") from error
    plan = plan_cluster(settings, checkpoint, this_machine(), ports, log_level)
    make_certificate(plan.router)  # wrong files are told before anything starts
    return plan


def _log_dir(given: str | None) -> tuple[Path, bool]:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="baton-")), True
    directory = Path(given).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot write logs to {directory}: {error.strerror}") from error
    return directory, False


async def _serve(plan: ClusterPlan, specs: list[ProcessSpec], display: ServeDisplay) -> None:
    stop, kill = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (kill if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in END_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            loop.add_signal_handler(number, end)
    cluster = LocalCluster(specs, plan.url, display.show, plan.router.drain_timeout_s, RestartPolicy())
    await cluster.run(stop, kill)

"""`baton serve`: a whole cluster on this machine."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import rich_click as click

from baton.cli.display.serve_banner import Banner
from baton.cli.display.serve_progress import ServeDisplay, open_display
from baton.cli.options.lora_modules import ModulesCommand
from baton.cli.options.model_argument import model_argument
from baton.cli.options.model_source import find_checkpoint, plan_model, servable
from baton.cli.options.panels import option_panels
from baton.cli.options.vllm_flags import vllm_flags
from baton.cli.serve_ray import auto_gpus, plan_serving, read_settings
from baton.cli.serve_ray import run as run_on_ray
from baton.deployment.local.cluster import LocalCluster
from baton.deployment.local.cluster_config import (
    ClusterSettings,
    cluster_options,
    engine_options,
    load_settings,
    router_options,
    worker_options,
)
from baton.deployment.local.cluster_plan import Checkpoint, ClusterPlan
from baton.deployment.local.ports import PortInUse, check_port
from baton.deployment.local.process_states import STATES_FILE, StatesWriter
from baton.deployment.local.router_view import with_watch_key
from baton.deployment.local.supervisor import GaveUp, RestartPolicy
from baton.engine.execution.visible_gpus import visible_gpus
from baton.extras import RAY
from baton.process.end_signals import EndSignals
from baton.process.entry import config_file_flag, log_level_flag, plain_errors
from baton.router.http.certificate import make_certificate
from baton.router.secrets import with_secrets
from baton.rpc.unix_sockets import socket_parent
from baton.settings.flags import click_options


@click.command(name="serve", cls=ModulesCommand)
@option_panels
@model_argument
@vllm_flags
@config_file_flag
@click.option("--ray", "on_ray", is_flag=True, help="Run the processes on Ray. Default: start a local Ray cluster.")
@click.option("--ray-address", help="With --ray: existing Ray cluster, HOST:PORT or auto for this node's.")
@click.option("--registry", help="With --ray: registry URL (redis://...). Default: start a private Redis.")
@click_options(cluster_options())
@click_options(worker_options())
@click_options(router_options())
@click_options(engine_options())
@log_level_flag
@plain_errors
def command(config_file: Path | None, log_level: str, on_ray: bool, ray_address: str | None, **flags: object) -> None:
    """Serve MODEL (a checkpoint directory or a Hugging Face id; default: the bundled model).

    Starts a router, prefill workers and decode workers as processes on this machine, restarts processes that die, and
    shuts down gracefully on Ctrl-C (immediately on the second). Options have vLLM's names if vLLM has the option.

    \b
    Examples:
    $ baton serve
    $ baton serve Qwen/Qwen3-0.6B --prefill 2 --decode 2 --port 8080
    $ baton serve /models/Qwen3-8B -tp 2 --max-model-len 32768 --slo ttft=1s,tpot=50ms
    $ baton serve --config baton.yaml
    """
    if on_ray:
        _serve_on_ray(config_file, with_secrets(flags, os.environ), ray_address, log_level)
        return
    if ray_address is not None or flags["registry"] is not None:
        raise click.UsageError("--ray-address and --registry need --ray")
    settings = load_settings(config_file, with_secrets(flags, os.environ))
    with TemporaryDirectory(prefix="baton-sockets-", dir=socket_parent(), ignore_cleanup_errors=True) as sockets:
        _serve_here(settings, Path(sockets), log_level)


def _serve_here(settings: ClusterSettings, sockets: Path, log_level: str) -> None:
    settings, watch_key = with_watch_key(settings)
    checkpoint, plan = _plan(settings, sockets, log_level)
    log_dir, is_temporary = _log_dir(settings.cluster.log_dir)
    with servable(checkpoint.name):
        display = open_display(plan, Banner.of(plan, checkpoint, log_dir, settings.engine, visible_gpus()))
    try:
        asyncio.run(_serve(plan, log_dir, display, watch_key))
    except (GaveUp, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        display.close()
    if is_temporary:
        shutil.rmtree(log_dir, ignore_errors=True)


def _plan(settings: ClusterSettings, sockets: Path, log_level: str) -> tuple[Checkpoint, ClusterPlan]:
    cluster = settings.cluster
    cluster.check_groups()
    checkpoint = find_checkpoint(cluster, settings.engine["decode"])
    try:
        check_port(cluster.host, cluster.port)
    except PortInUse as error:
        raise click.ClickException(f"{error}; choose another with --port") from error
    plan = plan_model(settings, checkpoint, sockets, log_level)
    make_certificate(plan.router)  # fail on invalid files before anything starts
    return checkpoint, plan


def _log_dir(given: str | None) -> tuple[Path, bool]:
    if given is None:
        return Path(mkdtemp(prefix="baton-")), True
    directory = Path(given).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot write logs to {directory}: {error.strerror}") from error
    return directory, False


def _serve_on_ray(
    config_file: Path | None, flags: Mapping[str, object], ray_address: str | None, log_level: str
) -> None:
    if not RAY.is_installed:
        raise click.ClickException(RAY.missing("baton serve --ray"))
    gpus = auto_gpus(ray_address)
    settings = read_settings(config_file, flags, ray_address, gpus)
    log_dir, is_temporary = _log_dir(settings.cluster.cluster.log_dir)
    run_on_ray(plan_serving(settings, ray_address, log_dir, log_level, gpus))
    if is_temporary:
        shutil.rmtree(log_dir, ignore_errors=True)


async def _serve(plan: ClusterPlan, log_dir: Path, display: ServeDisplay, watch_key: str | None) -> None:
    signals = EndSignals()
    signals.listen()
    states_path = log_dir / STATES_FILE
    plan = replace(plan, router=replace(plan.router, process_states=(str(states_path),)))
    specs, rendezvous = plan.specs(log_dir), plan.rendezvous_specs(log_dir)
    states = StatesWriter(states_path, [spec.name for spec in (*specs, *rendezvous)])
    cluster = LocalCluster(
        specs,
        plan.url,
        display.show,
        plan.router.drain_timeout_s,
        RestartPolicy(),
        rendezvous,
        states,
        watch_key,
    )
    try:
        await cluster.run(signals.stop, signals.kill)
    finally:
        states.close()

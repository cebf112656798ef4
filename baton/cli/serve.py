"""`baton serve`: a whole cluster on this machine."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import rich_click as click

from baton.cli.display.serve_banner import Banner
from baton.cli.display.serve_progress import open_display
from baton.cli.options.detach import DetachableCommand, Detachment, detach, detach_flags, with_logs
from baton.cli.options.draft_source import with_draft_directories
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
from baton.deployment.local.detached.folder import SERVE_LOG
from baton.deployment.local.events import Listener
from baton.deployment.local.log_bound import LogBound
from baton.deployment.local.ports import PortInUse, check_port
from baton.deployment.local.process_states import STATES_FILE, StatesWriter
from baton.deployment.local.router_view import with_watch_key
from baton.deployment.local.service_report import ServiceReport
from baton.deployment.local.supervisor import GaveUp, RestartPolicy
from baton.engine.execution.visible_gpus import visible_gpus
from baton.extras import RAY
from baton.process.end_signals import EndSignals
from baton.process.entry import config_file_flag, log_flags, plain_errors, take_log_flags
from baton.process.log_settings import LogSettings
from baton.process.service_manager import ServiceManager
from baton.router.http.certificate import make_certificate
from baton.router.secrets import with_secrets
from baton.rpc.unix_sockets import socket_parent
from baton.settings.flags import click_options


@click.command(name="serve", cls=DetachableCommand)
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
@log_flags
@detach_flags
@plain_errors
def command(
    config_file: Path | None,
    on_ray: bool,
    ray_address: str | None,
    detachment: Detachment,
    **flags: object,
) -> None:
    """Serve MODEL (a checkpoint directory or a Hugging Face id; default: the bundled model).

    Starts a router, prefill workers and decode workers as processes on this machine, restarts processes that die, and
    shuts down gracefully on Ctrl-C (immediately on the second). Options have vLLM's names if vLLM has the option.

    \b
    Examples:
    $ baton serve
    $ baton serve Qwen/Qwen3-0.6B --prefill 2 --decode 2 --port 8080
    $ baton serve /models/Qwen3-8B -tp 2 --max-model-len 32768 --slo ttft=1s,tpot=50ms
    $ baton serve --config baton.yaml
    $ baton serve /models/Qwen3-8B --detach --name qwen
    """
    log = take_log_flags(flags)
    report = ServiceReport(ServiceManager.take(os.environ))
    if on_ray:
        detachment.refuse("--ray")
        _serve_on_ray(config_file, with_secrets(flags, os.environ), ray_address, log, report)
        return
    if ray_address is not None or flags["registry"] is not None:
        raise click.UsageError("--ray-address and --registry need --ray")
    settings = load_settings(config_file, with_secrets(flags, os.environ))
    if detachment.is_wanted:
        detach(detachment, settings.cluster)
        return
    settings = replace(settings, engine=with_draft_directories(settings.engine))
    with (
        detachment.recorded(settings.cluster) as report.record,
        TemporaryDirectory(prefix="baton-sockets-", dir=socket_parent(), ignore_cleanup_errors=True) as sockets,
    ):
        _serve_here(with_logs(settings, detachment), Path(sockets), log, report)


def _serve_here(settings: ClusterSettings, sockets: Path, log: LogSettings, report: ServiceReport) -> None:
    settings, watch_key = with_watch_key(settings)
    checkpoint, plan = _plan(settings, sockets, log)
    log_dir, is_temporary = _log_dir(settings.cluster.log_dir)
    report.is_starting(plan.router.model_name, plan.url, plan.router.drain_timeout_s)
    with servable(checkpoint.name):
        display = open_display(plan, Banner.of(plan, checkpoint, log_dir, settings.engine, visible_gpus()))
    # A shell's `> serve.log` is not bounded: its position in the file would stay where it was when that is emptied.
    own_logs = [] if report.record is None else [log_dir / SERVE_LOG]
    max_bytes = settings.cluster.max_log_bytes
    try:
        asyncio.run(_serve(plan, log_dir, report.and_to(display.show), watch_key, own_logs, max_bytes))
    except (GaveUp, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        display.close()
    if is_temporary:
        shutil.rmtree(log_dir, ignore_errors=True)


def _plan(settings: ClusterSettings, sockets: Path, log: LogSettings) -> tuple[Checkpoint, ClusterPlan]:
    cluster = settings.cluster
    cluster.check_groups()
    checkpoint = find_checkpoint(cluster, settings.engine["decode"])
    try:
        check_port(cluster.host, cluster.port)
    except PortInUse as error:
        raise click.ClickException(f"{error}; choose another with --port") from error
    plan = plan_model(settings, checkpoint, sockets, log)
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
    config_file: Path | None,
    flags: Mapping[str, object],
    ray_address: str | None,
    log: LogSettings,
    report: ServiceReport,
) -> None:
    if not RAY.is_installed:
        raise click.ClickException(RAY.missing("baton serve --ray"))
    gpus = auto_gpus(ray_address)
    settings = read_settings(config_file, flags, ray_address, gpus)
    log_dir, is_temporary = _log_dir(settings.cluster.cluster.log_dir)
    run_on_ray(plan_serving(settings, ray_address, log_dir, log, gpus), report)
    if is_temporary:
        shutil.rmtree(log_dir, ignore_errors=True)


async def _serve(
    plan: ClusterPlan,
    log_dir: Path,
    listener: Listener,
    watch_key: str | None,
    own_logs: Sequence[Path],
    max_log_bytes: int,
) -> None:
    signals = EndSignals()
    signals.listen()
    states_path = log_dir / STATES_FILE
    plan = replace(plan, router=replace(plan.router, process_states=(str(states_path),)))
    specs, rendezvous = plan.specs(log_dir), plan.rendezvous_specs(log_dir)
    states = StatesWriter(states_path, [spec.name for spec in (*specs, *rendezvous)])
    cluster = LocalCluster(
        specs,
        plan.url,
        listener,
        plan.router.drain_timeout_s,
        RestartPolicy(),
        rendezvous,
        states,
        watch_key,
    )
    logs = [spec.log_path for spec in (*specs, *rendezvous) if spec.log_path is not None]
    bounding = asyncio.create_task(LogBound([*logs, *own_logs], max_log_bytes).run())
    try:
        await cluster.run(signals.stop, signals.kill)
    finally:
        bounding.cancel()
        states.close()

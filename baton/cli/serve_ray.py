"""`baton serve --ray`: the same cluster, with processes that Ray places, watches and replaces.

1. Start a local Ray, or join the one at --ray-address. Start a private Redis, unless --registry names one.
2. Ray starts the workers and the router: each is a replica that runs the process that `baton serve` would run.
3. Clients connect to the router's own port, as without Ray.
4. At shutdown the router drains, then the workers; then everything that was started here is stopped.
"""

import asyncio
import os
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from baton.cli.display.serve_banner import Banner
from baton.cli.display.serve_progress import open_line_display
from baton.cli.options.draft_source import with_draft_directories
from baton.cli.options.model_source import find_checkpoint, servable
from baton.deployment.local.cluster_plan import ClusterPlan, check_resources, plan_cluster
from baton.deployment.local.machine import this_machine
from baton.deployment.local.ports import PortInUse, check_port
from baton.deployment.local.redis_server import PrivateRedis
from baton.deployment.local.router_view import with_watch_key
from baton.deployment.local.service_report import ServiceReport
from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.settings import ROLES, ROUTER, SECTIONS, RaySettings
from baton.engine.execution.visible_gpus import VisibleGpus, visible_gpus
from baton.process.end_signals import EndSignals
from baton.process.host_memory import host_memory
from baton.process.log_settings import LogSettings
from baton.router.http.certificate import make_certificate
from baton.settings.config_file import read_config_file
from baton.settings.values import OptionError, Value

LOG_KEYS = ("log_level", "log_format")  # of the settings that are flags here
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a warning: num_gpus is always set
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # makes Ray bind to 127.0.0.1, as it does on these systems
# Ray's memory monitor would end Serve's controller on a full machine, because workers are not Ray's own processes.
NO_MEMORY_MONITOR = {"RAY_memory_monitor_refresh_ms": "0"}
# By default 15, with which the model would wait for every other program of the machine.
NICENESS = {"RAY_worker_niceness": "0"}


@dataclass(frozen=True, slots=True)
class RayServing:
    """Plan of one `baton serve --ray`."""

    settings: RaySettings
    plan: ClusterPlan  # the same cluster without Ray
    banner: Banner
    address: str | None  # of the Ray cluster to join; None: start a local one
    log_dir: Path
    watch_key: str | None = field(repr=False)  # authenticates requests for the router's /workers


def auto_gpus(address: str | None) -> VisibleGpus:
    """Return the GPUs that `--device auto` considers: this machine's, or those of the Ray cluster at `address`.

    Raises ClickException if that cluster cannot be reached.
    """
    if address is None:
        return visible_gpus()
    _set_environment(QUIET)
    from baton.deployment.ray.connection import RayFailed, joined_ray, num_gpus

    try:
        with joined_ray(address):
            count = num_gpus()
    except RayFailed as error:
        raise click.ClickException(str(error)) from error
    noun = "GPU" if count == 1 else "GPUs"
    return VisibleGpus(count, f"the nodes of this Ray cluster have {count or 'no'} {noun}")


def read_settings(
    config_file: Path | None, flags: Mapping[str, object], address: str | None, gpus: VisibleGpus
) -> RaySettings:
    """Read settings from a file and flags; the file may also have the keys of a Ray application. Raises OptionError."""
    content = read_config_file(config_file) if config_file is not None else {}
    settings = read_ray_settings(content, flags, one_machine=address is None, auto_device=gpus.auto_device)
    if not settings.has_router:
        raise OptionError("router: `baton serve` needs a router; deploy an application without one by `serve run`")
    if settings.num_replicas(ROUTER) != 1:
        raise OptionError(f"{SECTIONS[ROUTER]}.num_replicas: must be 1: `baton serve` has one router, at its port")
    for name, options in settings.deployments.items():
        if options.autoscaling is not None:
            raise OptionError(f"{SECTIONS[name]}.autoscaling: `baton serve` has fixed sizes; use `serve deploy`")
    if given := [name for name in LOG_KEYS if name in content]:
        raise OptionError(f"{given[0]}: set --{given[0].replace('_', '-')}; the key is for `serve deploy`")
    if address is not None and not settings.shared.has_registry:
        raise OptionError("registry: --ray-address needs --registry, with a Redis that every node can reach")
    return settings


def plan_serving(
    settings: RaySettings, address: str | None, log_dir: Path, log: LogSettings, gpus: VisibleGpus
) -> RayServing:
    """Plan the cluster. Raises OptionError, or ClickException if the model or the port cannot be used."""
    engines = with_draft_directories(settings.cluster.engine)
    settings = replace(settings, cluster=replace(settings.cluster, engine=engines))
    cluster = settings.cluster.cluster.with_workers({role: settings.num_replicas(role) for role in ROLES})
    checkpoint = find_checkpoint(cluster, settings.cluster.engine["decode"])
    try:
        check_port(cluster.host, cluster.port)
    except PortInUse as error:
        raise click.ClickException(f"{error}; choose another with --port") from error
    cluster = replace(
        cluster,
        model=str(checkpoint.directory),
        revision=None,
        tokenizer=None if checkpoint.tokenizer is None else str(checkpoint.tokenizer),
        tokenizer_revision=None,
        served_model_name=cluster.served_model_name or checkpoint.name,
        log_dir=str(log_dir.resolve()),
    )
    planned, watch_key = with_watch_key(replace(settings.cluster, cluster=cluster))
    plan = plan_cluster(planned, checkpoint, this_machine(), log=log)
    make_certificate(plan.router)  # fail on invalid files before anything starts
    if address is None:
        with servable(checkpoint.name):
            check_resources(plan, checkpoint.config, host_memory())
        planned = replace(planned, engine=_with_shares(settings, plan))
    settings = replace(settings, cluster=planned, host=cluster.host, port=cluster.port, log=log)
    with servable(checkpoint.name):
        banner = Banner.of(plan, checkpoint, log_dir, _without_auto_device(settings.cluster.engine, gpus), gpus)
    return RayServing(settings, plan, banner, address, log_dir, watch_key)


def _without_auto_device(
    engines: Mapping[str, Mapping[str, Value]], gpus: VisibleGpus
) -> dict[str, Mapping[str, Value]]:
    """Return the engine options without the device that `auto` was resolved to by the Ray settings."""
    return {
        role: {name: value for name, value in values.items() if (name, value) != ("device", gpus.auto_device)}
        for role, values in engines.items()
    }


def _with_shares(settings: RaySettings, plan: ClusterPlan) -> dict[str, dict[str, Value]]:
    """Add each worker's share of this machine to the engine options, because a replica cannot compute it."""
    engines = {role: dict(values) for role, values in settings.cluster.engine.items()}
    for worker in plan.workers:
        engine = worker.engine
        engines[worker.role] |= {
            "num_threads": engine.num_threads,
            "kv_cache_memory_bytes": engine.kv_cache_memory_bytes,
        }
    return engines


def run(serving: RayServing, report: ServiceReport) -> None:
    """Serve until SIGTERM or Ctrl-C, and report that it is ready. Raises ClickException."""
    with TemporaryDirectory(prefix="baton-ray-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        _set_environment(_environment(serving, directory))
        # Imported here because Ray is slow to import and reads the environment on import.
        from baton.deployment.ray.connection import RayFailed, cpus_of, joined_ray, own_ray, with_router_here

        try:
            if serving.address is None:
                with own_ray(directory, max(this_machine().num_cores, cpus_of(serving.settings))):
                    asyncio.run(_serve(serving, report))
            else:
                with joined_ray(serving.address):
                    here = replace(serving, settings=with_router_here(serving.settings))
                    asyncio.run(_serve(here, report))
        except (RayFailed, OSError) as error:
            raise click.ClickException(f"{error}\nLogs are in {serving.log_dir}") from error


def _set_environment(variables: Mapping[str, str]) -> None:
    """Set the variables that are not set yet. Call it before Ray is imported."""
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)


def _environment(serving: RayServing, directory: Path) -> dict[str, str]:
    """Return Ray's environment variables. A local Ray accepts only clients that can read the token file."""
    if serving.address is not None:
        return QUIET
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return {
        **QUIET,
        **LOOPBACK,
        **NO_MEMORY_MONITOR,
        **NICENESS,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


async def _serve(serving: RayServing, report: ServiceReport) -> None:
    from baton.deployment.ray.cluster import RayCluster

    signals = EndSignals()
    signals.listen()
    settings = serving.settings
    display = open_line_display(serving.plan, serving.banner)
    async with AsyncExitStack() as stack:
        if not settings.shared.has_registry:
            redis = PrivateRedis(serving.log_dir / "redis.log")
            stack.push_async_callback(redis.end)
            await redis.start()
            settings = settings.with_registry(redis.url)
            keeping = asyncio.create_task(redis.keep())
            keeping.add_done_callback(lambda _: signals.stop.set())  # without a registry no new worker is found
            stack.push_async_callback(_ended, keeping)
        listener = report.and_to(display.show)
        await RayCluster(settings, serving.plan.url, listener, serving.watch_key).run(signals.stop, signals.kill)


async def _ended(keeping: asyncio.Task[None]) -> None:
    """Cancel the task, and raise its error if it has failed."""
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping

"""`baton plan`: the pool sizes that the present traffic needs."""

import asyncio
import time
from pathlib import Path

import rich_click as click

from baton.cli.options.worker_addresses import registry_of
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.explanation import explain
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.ray.observed_pools import ObservedPools
from baton.deployment.ray.pool_progress import PoolProgress
from baton.deployment.ray.pools_observer import own_reports
from baton.membership.registry.base import Registry, RegistryLost
from baton.membership.registry.router_report import RouterReport, decode_report
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError

TIMEOUT_S = 10.0


@click.command(name="plan")
@click.option(
    "--registry-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="File with the URL of the registry (redis://...).",
)
@click.option("--model", help="The model, if the registry has several.")
@click.option("--gpus", type=click.IntRange(2), default=1024, show_default=True, help="Most GPUs of both pools.")
@click.option("--slo", help="Objectives [default: ttft=1s,tpot=50ms].")
@click.option("--explain", "is_explained", is_flag=True, help="Print what is measured and what the model makes of it.")
def command(registry_file: Path, model: str | None, gpus: int, slo: str | None, is_explained: bool) -> None:
    """Print how many prefill and decode workers the present traffic needs.

    The model is the autoscaler's, without its history, and with one GPU for a worker; nothing is changed. Needs routers
    that report to a registry.

    \b
    Examples:
    $ baton plan --registry-file redis_url
    $ baton plan --registry-file redis_url --gpus 16 --slo ttft=2s,tpot=40ms --explain
    """
    try:
        settings = ScalingSettings(budget_gpus=gpus, slo=SLO.of(parse_slo(slo)) if slo is not None else SLO())
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--slo") from error
    pools = ObservedPools.of(asyncio.run(_reports(registry_of(registry_file), model)))
    snapshot = pools.snapshot(ByPool(PoolProgress(), PoolProgress()), settings.slo.quantile, time.monotonic())
    decision, _ = plan_pools(snapshot, None, settings)
    ready = snapshot.pools.map(lambda pool: pool.num_ready)
    needed = f"{decision.prefill.need} prefill and {decision.decode.need} decode workers"
    click.echo(f"needed: {needed}; ready: {ready.prefill} and {ready.decode}")
    if is_explained:
        for part in explain(snapshot, decision, settings).split("; "):
            click.echo(part)


async def _reports(registry: Registry, model: str | None) -> tuple[RouterReport, ...]:
    """Return the routers' reports of one model. Raises ClickException."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            texts = await registry.reports.read()
        reports = own_reports([decode_report(text) for text in texts], model)
    except TimeoutError as error:
        raise click.ClickException(f"{registry.name} does not answer") from error
    except (RegistryLost, ValueError) as error:
        raise click.ClickException(f"{registry.name}: {error}") from error
    finally:
        await registry.close()
    if not reports:
        raise click.ClickException(f"no router reports to {registry.name}; have routers this --registry?")
    return reports

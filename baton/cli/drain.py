"""`baton drain`: a worker, or all of a host, get no more requests, and give away what does not end in time."""

import asyncio
import ssl
from pathlib import Path

import grpc
import httpx
import rich_click as click

from baton.cli.https_flags import https_flags
from baton.cli.server import ServerError, check, connect, key_flag, unreachable, url_flag
from baton.cli.tls_flags import tls_flags
from baton.protos.worker_pb2 import DrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.option_values import OptionError
from baton.rpc.registry.base import Registry, RegistryView
from baton.rpc.registry.factory import open_registry
from baton.rpc.tls import Security

READ_TIMEOUT_S = 10.0
REGISTRY_TIMEOUT_S = 10.0


@click.command(name="drain")
@url_flag
@key_flag
@click.argument("worker", required=False)
@click.option("--host", help="All workers at this address, as a registry has them, instead of WORKER.")
@click.option(
    "--registry-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that holds the URL of the registry (redis://...), for --host.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.001),
    help="Seconds in which running requests may finish; then others go on with them. Unset: the worker's own time.",
)
@https_flags
@tls_flags
def command(
    url: str,
    api_key: str | None,
    worker: str | None,
    host: str | None,
    registry_file: Path | None,
    timeout_s: float | None,
    https: ssl.SSLContext | None,
    security: Security,
) -> None:
    """Drain WORKER, by its id or its address, and return once it may be stopped without anybody noticing.

    No request is lost: those that do not end in time go on at other workers, which take over their KV.

    \b
    Examples:
    $ baton drain decode-0
    $ baton drain 10.0.0.5:7000 --timeout-s 60
    """
    if (host is None) != (registry_file is None):
        raise click.UsageError("--host needs --registry-file, and --registry-file needs --host")
    if (worker is None) == (host is None):
        raise click.UsageError("name one WORKER, or a --host for all that are there")
    if host is not None and registry_file is not None:
        found = asyncio.run(_workers_at(host, _registry(registry_file)))
    else:
        assert worker is not None  # one of the two is given
        found = {worker: _address(connect(url, READ_TIMEOUT_S, api_key, https), url, worker)}
    if not found:
        click.echo(f"there is no worker at {host}")
        return
    _tell(asyncio.run(_drain_all(security, found, timeout_s or 0.0)))


def _address(router: httpx.Client, url: str, worker: str) -> str:
    """Where the worker is, as the router knows it."""
    with router as client:
        try:
            response = client.get("/workers")
            check(response)
            told = response.json()["workers"]
        except (ServerError, ValueError, KeyError) as error:
            raise click.ClickException(f"{url}: {error}") from error
        except httpx.TransportError as error:
            raise unreachable(url, error) from error
    found = [each["address"] for each in told if worker in (each["worker_id"], each["address"])]
    if len(found) == 1:
        return str(found[0])
    if found:
        raise click.ClickException(
            f"several workers go by the id {worker}: name one by its address, {', '.join(found)}"
        )
    names = ", ".join(sorted(str(each["worker_id"] or each["address"]) for each in told))
    raise click.ClickException(f"{url} has no worker {worker}; it has {names or 'none at all'}")


def _registry(file: Path) -> Registry:
    try:
        return open_registry(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError, OptionError) as error:
        raise click.ClickException(f"{file}: {error}") from error


async def _workers_at(host: str, registry: Registry) -> dict[str, str]:
    """Addresses of the workers at a host, by their ids."""
    try:
        view = await asyncio.wait_for(_first_view(registry), REGISTRY_TIMEOUT_S)
    except TimeoutError as error:
        raise click.ClickException(f"{registry.name} does not answer") from error
    finally:
        await registry.close()
    if not view.is_listed:
        raise click.ClickException(f"{registry.name} cannot be asked: {view.error}")
    members = [member for member in view.members if member.address.rpartition(":")[0].strip("[]") == host]
    return {f"{member.worker_id}@{member.address}": member.address for member in members}


async def _first_view(registry: Registry) -> RegistryView:
    """What the registry says first."""
    first: asyncio.Future[RegistryView] = asyncio.get_running_loop().create_future()

    def listen(view: RegistryView) -> None:
        if not first.done():
            first.set_result(view)

    following = asyncio.create_task(registry.follow(listen))
    try:
        return await first
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _drain_all(security: Security, addresses: dict[str, str], timeout_s: float) -> dict[str, str | None]:
    """Drains them at once; for each why it did not, if it did not."""
    failures = await asyncio.gather(*(_drain(security, address, timeout_s) for address in addresses.values()))
    return dict(zip(addresses, failures, strict=True))


async def _drain(security: Security, address: str, timeout_s: float) -> str | None:
    try:
        async with security.channel(address) as channel:
            await WorkerStub(channel).Drain(DrainRequest(timeout_s=timeout_s))
    except grpc.aio.AioRpcError as error:
        return f"at {address}: {error.details()}"
    return None


def _tell(failures: dict[str, str | None]) -> None:
    for worker, failure in failures.items():
        if failure is None:
            click.echo(f"{worker} is drained")
    failed = [f"{worker} {failure}" for worker, failure in failures.items() if failure is not None]
    if failed:
        raise click.ClickException("; ".join(failed))

"""Which workers a command is for: one that a router knows, or all at a host that a registry has."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import grpc
import httpx

from baton.cli.server import ServerError, check, unreachable
from baton.rpc.option_values import OptionError
from baton.rpc.registry.base import Registry, RegistryView
from baton.rpc.registry.factory import open_registry
from baton.rpc.tls import Security

REGISTRY_TIMEOUT_S = 10.0


def worker_address(router: httpx.Client, url: str, worker: str) -> str:
    """Return the worker's address, as the router has it."""
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
        raise click.ClickException(f"several workers have the id {worker}; give the address of one: {', '.join(found)}")
    names = ", ".join(sorted(str(each["worker_id"] or each["address"]) for each in told))
    raise click.ClickException(f"{url} has no worker {worker}; it has {names or 'none at all'}")


def registry_of(file: Path) -> Registry:
    try:
        return open_registry(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError, OptionError) as error:
        raise click.ClickException(f"{file}: {error}") from error


async def workers_at(host: str, registry: Registry) -> dict[str, str]:
    """Addresses of the workers at a host, by their ids."""
    try:
        view = await asyncio.wait_for(_first_view(registry), REGISTRY_TIMEOUT_S)
    except TimeoutError as error:
        raise click.ClickException(f"{registry.name} does not answer") from error
    finally:
        await registry.close()
    if not view.is_listed:
        raise click.ClickException(f"{registry.name} cannot be read: {view.error}")
    members = [member for member in view.members if member.address.rpartition(":")[0].strip("[]") == host]
    return {f"{member.worker_id}@{member.address}": member.address for member in members}


async def _first_view(registry: Registry) -> RegistryView:
    """Return the registry's first view."""
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


async def call_each(
    security: Security, addresses: dict[str, str], call: Callable[[grpc.aio.Channel], Awaitable[object]]
) -> dict[str, str | None]:
    """Call all workers at once, each over its channel; return for each why the call failed, or None."""

    async def fail_of(address: str) -> str | None:
        try:
            async with security.channel(address) as channel:
                await call(channel)
        except grpc.aio.AioRpcError as error:
            return f"at {address}: {error.details()}"
        return None

    failures = await asyncio.gather(*map(fail_of, addresses.values()))
    return dict(zip(addresses, failures, strict=True))


def report(failures: dict[str, str | None], done: str) -> None:
    """Print each worker's success. Raises ClickException if there was a failure."""
    for worker, failure in failures.items():
        if failure is None:
            click.echo(f"{worker} {done}")
    failed = [f"{worker} {failure}" for worker, failure in failures.items() if failure is not None]
    if failed:
        raise click.ClickException("; ".join(failed))

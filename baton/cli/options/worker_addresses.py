"""Target workers of a command: one that a router lists, or all that a registry lists on a host."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
import httpx

from baton.membership.registry.base import LONGEST_PAUSE_S, Registry, first_view
from baton.membership.registry.factory import open_registry
from baton.rpc.router_client import ServerError, check, json_body, unreachable
from baton.rpc.tls import Security
from baton.settings.values import OptionError

REGISTRY_TIMEOUT_S = 10.0
RETURN_S = LONGEST_PAUSE_S + 0.5  # until workers have registered again at a Redis that restarted empty
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker as the router or the registry lists it."""

    name: str
    address: str
    model: str | None  # None: the router cannot reach it
    role: str | None
    takes_requests: bool


def host_flags(verb: str) -> Callable[[Command], Command]:
    """Add --host, --registry-file and --missing-ok to a click command."""

    def add(command: Command) -> Command:
        path = click.Path(exists=True, dir_okay=False, path_type=Path)
        file_help = "With --host: file with the URL of the registry (redis://...)."
        command = click.option("--registry-file", type=path, help=file_help)(command)
        missing_help = "With --host: succeed if the registry lists no worker there."
        command = click.option("--missing-ok", is_flag=True, help=missing_help)(command)
        host_help = f"{verb} all workers that the registry lists at this address, instead of WORKER."
        return click.option("--host", help=host_help)(command)

    return add


def check_target(worker: str | None, host: str | None, registry_file: Path | None, missing_ok: bool) -> None:
    """Raise UsageError unless the flags name either a worker or a host."""
    if missing_ok and host is None:
        raise click.UsageError("--missing-ok needs --host")
    if (host is None) != (registry_file is None):
        raise click.UsageError("--host and --registry-file must be given together")
    if (worker is None) == (host is None):
        raise click.UsageError("give either one WORKER, or --host for all workers at an address")


def router_workers(router: httpx.Client, url: str) -> list[KnownWorker]:
    """Return the workers that the router lists. Raises ClickException."""
    with router as client:
        try:
            response = client.get("/workers")
            check(response)
            match json_body(response):
                case {"workers": list() as workers}:
                    return [_known(each) for each in workers]
            raise ServerError("the server is not a router")
        except (ServerError, KeyError, TypeError) as error:
            raise click.ClickException(f"{url}: {error}") from error
        except httpx.TransportError as error:
            raise unreachable(url, error) from error


def _known(worker: Mapping[str, Any]) -> KnownWorker:
    name, is_ready = worker["worker_id"] or "", worker["state"] == "ready"
    return KnownWorker(name, worker["address"], worker.get("model"), worker["role"], is_ready)


def named(workers: Sequence[KnownWorker], worker: str, url: str) -> dict[str, str]:
    """Return the address of the worker with this id or address, keyed by the name given. Raises ClickException."""
    found = [each.address for each in workers if worker in (each.name, each.address)]
    if len(found) == 1:
        return {worker: found[0]}
    if found:
        raise click.ClickException(f"several workers have the id {worker}; give the address of one: {', '.join(found)}")
    names = ", ".join(sorted(each.name or each.address for each in workers))
    raise click.ClickException(f"{url} has no worker {worker}; it has {names or 'no workers'}")


def at_host(workers: Sequence[KnownWorker], host: str) -> dict[str, str]:
    """Return the addresses of the workers at a host, keyed by `id@address`."""
    found = [each for each in workers if each.address.rpartition(":")[0].strip("[]") == host]
    return {f"{each.name}@{each.address}": each.address for each in found}


async def host_workers(file: Path, host: str) -> tuple[list[KnownWorker], dict[str, str]]:
    """Return all workers that the registry of a file lists, and the addresses of those at a host as `at_host`.

    If there are none at the host, the registry is read a second time, because one that has just restarted empty has all
    workers again after a pause. Raises ClickException.
    """
    workers = await registry_workers(registry_of(file))
    if not at_host(workers, host):
        await asyncio.sleep(RETURN_S)
        workers = await registry_workers(registry_of(file))
    return workers, at_host(workers, host)


def report_none(file: Path, host: str, missing_ok: bool) -> None:
    """Print that no worker is listed at a host. Raises ClickException unless `missing_ok`."""
    text = f"the registry of {file} lists no worker at {host}"
    if not missing_ok:
        raise click.ClickException(f"{text}; a worker that cannot reach the registry may still serve there")
    click.echo(text)


def registry_of(file: Path) -> Registry:
    try:
        return open_registry(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError, OptionError) as error:
        raise click.ClickException(f"{file}: {error}") from error


async def registry_workers(registry: Registry) -> list[KnownWorker]:
    """Return the workers that the registry lists. Raises ClickException."""
    try:
        view = await first_view(registry, REGISTRY_TIMEOUT_S)
    except TimeoutError as error:
        raise click.ClickException(f"{registry.name} does not answer") from error
    if not view.is_listed:
        raise click.ClickException(f"{registry.name} cannot be read: {view.error}")
    return [
        KnownWorker(each.worker_id, each.address, each.model, each.role, not each.draining) for each in view.members
    ]


async def call_each(
    security: Security, addresses: dict[str, str], call: Callable[[grpc.aio.Channel], Awaitable[object]]
) -> dict[str, str | None]:
    """Call all workers concurrently; return the error of each call, or None for success."""

    async def error_of(address: str) -> str | None:
        try:
            async with security.channel(address) as channel:
                await call(channel)
        except grpc.aio.AioRpcError as error:
            return f"at {address}: {error.details()}"
        return None

    failures = await asyncio.gather(*map(error_of, addresses.values()))
    return dict(zip(addresses, failures, strict=True))


def report(failures: dict[str, str | None], done: str) -> None:
    """Print one line for each success. Raises ClickException with all failures."""
    for worker, failure in failures.items():
        if failure is None:
            click.echo(f"{worker} {done}")
    failed = [f"{worker} {failure}" for worker, failure in failures.items() if failure is not None]
    if failed:
        raise click.ClickException("; ".join(failed))

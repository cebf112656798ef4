"""`baton drain`: a worker gets no more requests, and gives away what does not end in time."""

import asyncio
import ssl

import click
import grpc
import httpx

from baton.https_flags import https_flags
from baton.server import ServerError, check, connect, key_flag, unreachable, url_flag
from baton.tls_flags import tls_flags
from protos.worker_pb2 import DrainRequest
from protos.worker_pb2_grpc import WorkerStub
from rpc.tls import Security

READ_TIMEOUT_S = 10.0


@click.command(name="drain")
@url_flag
@key_flag
@click.argument("worker")
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
    worker: str,
    timeout_s: float | None,
    https: ssl.SSLContext | None,
    security: Security,
) -> None:
    """Drain WORKER, by its id or its address, and return once it may be stopped without anybody noticing.

    No request is lost: those that do not end in time go on at other workers, which take over their KV.
    """
    address = _address(connect(url, READ_TIMEOUT_S, api_key, https), url, worker)
    try:
        asyncio.run(_drain(security, address, timeout_s or 0.0))
    except grpc.aio.AioRpcError as error:
        raise click.ClickException(f"{worker} at {address}: {error.details()}") from error
    click.echo(f"{worker} is drained")


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


async def _drain(security: Security, address: str, timeout_s: float) -> None:
    async with security.channel(address) as channel:
        await WorkerStub(channel).Drain(DrainRequest(timeout_s=timeout_s))

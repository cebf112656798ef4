"""`baton drain`: a worker, or all of a host, get no more requests, and give away what does not end in time."""

import asyncio
import ssl
from pathlib import Path

import rich_click as click

from baton.cli.https_flags import https_flags
from baton.cli.server import connect, key_flag, url_flag
from baton.cli.tls_flags import tls_flags
from baton.cli.worker_addresses import call_each, registry_of, report, worker_address, workers_at
from baton.protos.worker_pb2 import DrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.tls import Security

READ_TIMEOUT_S = 10.0


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

    No request is lost: those that do not end in time go on at other workers, which take over their KV. `baton undrain`
    puts a drained worker back into service.

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
        found = asyncio.run(workers_at(host, registry_of(registry_file)))
    else:
        assert worker is not None  # one of the two is given
        found = {worker: worker_address(connect(url, READ_TIMEOUT_S, api_key, https), url, worker)}
    if not found:
        click.echo(f"there is no worker at {host}")
        return
    request = DrainRequest(timeout_s=timeout_s or 0.0)
    report(asyncio.run(call_each(security, found, lambda channel: WorkerStub(channel).Drain(request))), "is drained")

"""`baton drain`: take one worker, or all workers of a host, out of service."""

import asyncio
import ssl
from collections.abc import Collection, Sequence
from pathlib import Path

import rich_click as click

from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import key_flag, url_flag
from baton.cli.options.tls_flags import tls_flags
from baton.cli.options.worker_addresses import (
    KnownWorker,
    call_each,
    check_target,
    host_flags,
    host_workers,
    named,
    report,
    report_none,
    router_workers,
)
from baton.protos.worker_pb2 import DrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.router_client import connect
from baton.rpc.tls import Security

READ_TIMEOUT_S = 10.0


class LastWorker(click.ClickException):
    """Rejected drain or change of role: no other worker of the role accepts requests."""

    exit_code = 3


@click.command(name="drain")
@url_flag
@key_flag
@click.argument("worker", required=False)
@host_flags("Drain")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.001),
    help="Seconds to let running requests finish; the rest migrate to other workers. Default: the worker's setting.",
)
@click.option("--force", is_flag=True, help="Drain even if no other worker of the role accepts requests.")
@https_flags
@tls_flags
def command(
    url: str,
    api_key: str | None,
    worker: str | None,
    host: str | None,
    registry_file: Path | None,
    missing_ok: bool,
    timeout_s: float | None,
    force: bool,
    https: ssl.SSLContext | None,
    security: Security,
) -> None:
    """Drain WORKER, given by id or address, and return when it can be stopped safely.

    No request is lost: requests that do not finish in time migrate to other workers together with their KV. `baton
    undrain` puts a drained worker back into service. Exits with status 3, without draining, if no other worker of the
    role accepts requests. With --host, fails if the registry lists no worker there, which may still serve if it cannot
    reach the registry; --missing-ok is for hosts that may have none.

    \b
    Examples:
    $ baton drain decode-0
    $ baton drain 10.0.0.5:7000 --timeout-s 60
    """
    check_target(worker, host, registry_file, missing_ok)
    if host is not None and registry_file is not None:
        workers, found = asyncio.run(host_workers(registry_file, host))
        if not found:
            report_none(registry_file, host, missing_ok)
            return
    else:
        assert worker is not None  # one of the two is given
        workers = router_workers(connect(url, READ_TIMEOUT_S, api_key, https), url)
        found = named(workers, worker, url)
    if not force:
        check_others_serve(workers, found.values())
    request = DrainRequest(timeout_s=timeout_s or 0.0)
    report(asyncio.run(call_each(security, found, lambda channel: WorkerStub(channel).Drain(request))), "is drained")


def check_others_serve(workers: Sequence[KnownWorker], addresses: Collection[str], verb: str = "drains") -> None:
    """Raise LastWorker if draining `addresses` would leave a role without a worker that accepts requests.

    verb: what --force does to the worker, for the error.
    """
    serving = [each for each in workers if each.takes_requests]
    left = [each for each in serving if each.address not in addresses]
    for leaving in serving:
        if leaving.address in addresses and not any(_replaces(each, leaving) for each in left):
            undo = f"; `baton undrain {leaving.name}` puts it back" if verb == "drains" else ""
            raise LastWorker(
                f"{leaving.name} is the last {leaving.role} worker that accepts requests; add one, or put one back "
                f"with `baton undrain`. --force {verb} it anyway{undo}"
            )


def _replaces(worker: KnownWorker, leaving: KnownWorker) -> bool:
    """Whether a worker can replace the leaving one. A worker of role `both` prefills only what it decodes."""
    has_role = worker.role in (leaving.role, "both") or (leaving.role == "both" and worker.role == "decode")
    return has_role and worker.model == leaving.model

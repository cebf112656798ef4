"""`baton undrain`: put a drained worker back into service."""

import asyncio
import ssl
from collections.abc import Awaitable
from pathlib import Path

import grpc
import rich_click as click

from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import key_flag, url_flag
from baton.cli.options.tls_flags import tls_flags
from baton.cli.options.worker_addresses import (
    call_each,
    check_target,
    host_flags,
    host_workers,
    named,
    report,
    report_none,
    router_workers,
)
from baton.protos.worker_pb2 import UndrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.router_client import connect
from baton.rpc.tls import Security

TIMEOUT_S = 10.0  # of each call


@click.command(name="undrain")
@url_flag
@key_flag
@click.argument("worker", required=False)
@host_flags("Undrain")
@https_flags
@tls_flags
def command(
    url: str,
    api_key: str | None,
    worker: str | None,
    host: str | None,
    registry_file: Path | None,
    missing_ok: bool,
    https: ssl.SSLContext | None,
    security: Security,
) -> None:
    """Put WORKER, given by id or address, back into service after `baton drain`.

    Undraining a worker that is in service is not an error. A drain in progress is cancelled; requests that have
    migrated to other workers stay there. A worker that is shutting down cannot be undrained.
    """
    check_target(worker, host, registry_file, missing_ok)
    if host is not None and registry_file is not None:
        _, found = asyncio.run(host_workers(registry_file, host))
        if not found:
            report_none(registry_file, host, missing_ok)
            return
    else:
        assert worker is not None  # one of the two is given
        found = named(router_workers(connect(url, TIMEOUT_S, api_key, https), url), worker, url)

    def undrain(channel: grpc.aio.Channel) -> Awaitable[object]:
        return WorkerStub(channel).Undrain(UndrainRequest(), timeout=TIMEOUT_S)

    report(asyncio.run(call_each(security, found, undrain)), "accepts requests again")

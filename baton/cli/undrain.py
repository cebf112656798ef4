"""`baton undrain`: a drained worker takes requests again."""

import asyncio
import ssl
from collections.abc import Awaitable

import grpc
import rich_click as click

from baton.cli.https_flags import https_flags
from baton.cli.server import connect, key_flag, url_flag
from baton.cli.tls_flags import tls_flags
from baton.cli.worker_addresses import call_each, report, worker_address
from baton.protos.worker_pb2 import UndrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.tls import Security

TIMEOUT_S = 10.0  # of each call


@click.command(name="undrain")
@url_flag
@key_flag
@click.argument("worker")
@https_flags
@tls_flags
def command(url: str, api_key: str | None, worker: str, https: ssl.SSLContext | None, security: Security) -> None:
    """Put WORKER, by its id or its address, back into service after `baton drain`.

    It is no error to undrain a worker that serves. A drain that is still going on is given up; requests that it has
    handed to other workers stay there. A worker that is shutting down cannot be undrained.
    """
    found = {worker: worker_address(connect(url, TIMEOUT_S, api_key, https), url, worker)}

    def undrain(channel: grpc.aio.Channel) -> Awaitable[object]:
        return WorkerStub(channel).Undrain(UndrainRequest(), timeout=TIMEOUT_S)

    report(asyncio.run(call_each(security, found, undrain)), "takes requests again")

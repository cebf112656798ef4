"""`baton role`: change the role of a worker without a restart."""

import asyncio
import ssl
from collections.abc import Awaitable
from typing import get_args

import grpc
import rich_click as click

from baton.cli.drain import READ_TIMEOUT_S, check_others_serve
from baton.cli.options.https_flags import https_flags
from baton.cli.options.server import key_flag, url_flag
from baton.cli.options.tls_flags import tls_flags
from baton.cli.options.worker_addresses import call_each, named, report, router_workers
from baton.protos.worker_pb2 import ChangeRoleRequest, WorkerRole
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.router_client import connect
from baton.rpc.tls import Security
from baton.settings.names import Role


@click.command(name="role")
@url_flag
@key_flag
@click.argument("worker")
@click.argument("role", type=click.Choice(get_args(Role)))
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.001),
    help="Seconds to let running requests finish; the rest migrate to other workers. Default: the worker's setting.",
)
@click.option("--force", is_flag=True, help="Change it even if no other worker of its current role accepts requests.")
@https_flags
@tls_flags
def command(
    url: str,
    api_key: str | None,
    worker: str,
    role: Role,
    timeout_s: float | None,
    force: bool,
    https: ssl.SSLContext | None,
    security: Security,
) -> None:
    """Change the role of WORKER, given by id or address, to ROLE, and return when it accepts requests again.

    The worker is drained as by `baton drain`: no request is lost. Then it serves the other role with its loaded
    weights and its prefix cache, at the same address and under the same id, until it is restarted. If the change fails
    it serves its former role. Exits with status 3, without a change, if no other worker of its current role accepts
    requests.

    \b
    Examples:
    $ baton role prefill-1 decode
    $ baton role 10.0.0.5:7000 prefill --timeout-s 60
    """
    workers = router_workers(connect(url, READ_TIMEOUT_S, api_key, https), url)
    found = named(workers, worker, url)
    has_role = any(each.address in found.values() and each.role == role for each in workers)
    if not force and not has_role:
        check_others_serve(workers, found.values(), "changes")
    request = ChangeRoleRequest(role=WorkerRole.Value(f"WORKER_ROLE_{role.upper()}"), timeout_s=timeout_s or 0.0)

    def change(channel: grpc.aio.Channel) -> Awaitable[object]:
        return WorkerStub(channel).ChangeRole(request)

    report(asyncio.run(call_each(security, found, change)), f"has the role {role}")

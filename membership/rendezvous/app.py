"""The process of a rendezvous: gRPC server, health, registration, orderly shutdown."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # `health.aio` is this module, under a name type checkers miss
from grpc_reflection.v1alpha import reflection

from baton.membership.registry.base import PlaceTaken
from baton.membership.rendezvous.config import RendezvousConfig, RendezvousSettings
from baton.membership.rendezvous.rendezvous_address import registered
from baton.membership.rendezvous.service import RendezvousService
from baton.process.progress import ProgressReporter
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.listening import listen
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.tls import make_security

logger = logging.getLogger(__name__)

STOP_GRACE_S = 0.5
POLL_S = 0.05  # while waiting for members to leave
MAX_REQUEST_BYTES = 1 << 20  # ten times a join with a thousand members


async def run(config: RendezvousConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises RuntimeError if the address is in use."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await serve(config, stopping, RendezvousSettings(timeout_s=config.timeout_s))


async def serve(config: RendezvousConfig, stopping: asyncio.Event, settings: RendezvousSettings) -> None:
    """Serve until `stopping` is set."""
    options = {**dict(SERVER_OPTIONS), "grpc.max_receive_message_length": MAX_REQUEST_BYTES}
    server = grpc.aio.server(interceptors=[RefuseMalformed()], options=tuple(options.items()))
    service, health_servicer = RendezvousService(settings), HealthServicer()
    group_pb2_grpc.add_RendezvousServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    name = group_pb2.DESCRIPTOR.services_by_name["Rendezvous"].full_name
    reflection.enable_server_reflection([name, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    security = make_security(config.tls_cert, config.tls_key, config.tls_ca, config.tls_server_name)
    address = listen(server, security, config.host, config.port, config.uds)
    monitor = asyncio.create_task(service.run(), name="rendezvous")
    try:
        await server.start()
        for service_name in ("", name):
            await health_servicer.set(service_name, health_pb2.HealthCheckResponse.SERVING)
        ProgressReporter(config.progress_fd).ready(address=address)
        logger.info("the rendezvous serves at %s", address)
        # Withdrawn before the streams end, so that members that join again find the next rendezvous.
        async with registered(config, address) as registration:
            await _wait_or_fail(stopping.wait(), monitor, registration)
            with suppress(TimeoutError, PlaceTaken):  # members that end at the same time need it for an orderly leave
                async with asyncio.timeout(config.drain_timeout_s):
                    await _wait_or_fail(_all_left(service), monitor, registration)
    finally:
        service.close()  # before the streams end one by one, so that this begins no epochs
        await health_servicer.enter_graceful_shutdown()
        await server.stop(STOP_GRACE_S)
        monitor.cancel()
        await asyncio.gather(monitor, return_exceptions=True)


async def _all_left(service: RendezvousService) -> None:
    """Return once there are no members."""
    while service.num_members:  # noqa: ASYNC110  # a short poll at shutdown
        await asyncio.sleep(POLL_S)


async def _wait_or_fail(awaited: Coroutine[object, object, object], *failures: asyncio.Future[None]) -> None:
    """Return once `awaited` is done; raise the error of the first future that fails."""
    waits: list[asyncio.Future[Any]] = [asyncio.create_task(awaited), *failures]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for failure in failures:
            if failure.done():
                failure.result()
    finally:
        waits[0].cancel()

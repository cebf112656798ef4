"""The process of a rendezvous: gRPC server, health, orderly end."""

import asyncio
import logging
import signal

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # `health.aio` is this module, under a name type checkers miss
from grpc_reflection.v1alpha import reflection

from protos import group_pb2, group_pb2_grpc
from rpc.group.config import RendezvousConfig
from rpc.group.service import RendezvousService
from rpc.group.settings import RendezvousSettings
from rpc.grpc_options import SERVER_OPTIONS
from rpc.host_port import host_port
from rpc.malformed import RefuseMalformed
from rpc.progress import ProgressReporter
from rpc.tls import make_security

logger = logging.getLogger(__name__)

STOP_GRACE_S = 0.5
MAX_REQUEST_BYTES = 1 << 20  # a join that names a thousand members is a tenth of it


async def run(config: RendezvousConfig) -> None:
    """Serves until SIGTERM or SIGINT. Raises if the address is taken."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await serve(config, stopping, RendezvousSettings(timeout_s=config.timeout_s))


async def serve(config: RendezvousConfig, stopping: asyncio.Event, settings: RendezvousSettings) -> None:
    """Serves until `stopping` is set."""
    options = {**dict(SERVER_OPTIONS), "grpc.max_receive_message_length": MAX_REQUEST_BYTES}
    server = grpc.aio.server(interceptors=[RefuseMalformed()], options=tuple(options.items()))
    service, health_servicer = RendezvousService(settings), HealthServicer()
    group_pb2_grpc.add_RendezvousServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    name = group_pb2.DESCRIPTOR.services_by_name["Rendezvous"].full_name
    reflection.enable_server_reflection([name, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    security = make_security(config.tls_cert, config.tls_key, config.tls_ca, config.tls_server_name)
    port = security.bind(server, host_port(config.host, config.port))
    looking = asyncio.create_task(service.run(), name="rendezvous")
    try:
        await server.start()
        for service_name in ("", name):
            await health_servicer.set(service_name, health_pb2.HealthCheckResponse.SERVING)
        address = host_port(config.host, port)
        ProgressReporter(config.progress_fd).ready(address=address)
        logger.info("the rendezvous serves at %s", address)
        await _first(looking, asyncio.create_task(stopping.wait()))
    finally:
        service.close()  # before the streams end one by one: no epoch is to begin because of that
        await health_servicer.enter_graceful_shutdown()
        await server.stop(STOP_GRACE_S)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _first(looking: asyncio.Task[None], stop: asyncio.Task[bool]) -> None:
    """Returns once the process is to stop; raises what the looks fail with."""
    try:
        await asyncio.wait((looking, stop), return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            looking.result()
    finally:
        stop.cancel()

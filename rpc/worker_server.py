"""The process of a worker, whatever its role: engine, transport, gRPC server, health, drain."""

import asyncio
import logging
import signal
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # `health.aio` is this module, under a name type checkers miss
from grpc_reflection.v1alpha import reflection

from engine.engine import Engine
from kvtransfer.base import PoolIdentity
from kvtransfer.registry import create_transport
from kvtransfer.shared_pool import SharedPool
from protos import worker_pb2, worker_pb2_grpc
from rpc.drain import Drain
from rpc.engine_host import EngineHost
from rpc.grpc_options import SERVER_OPTIONS
from rpc.host_port import host_port
from rpc.kv_source import KVSourceService
from rpc.peers import Channels
from rpc.pool_description import pool_to_proto
from rpc.progress import ProgressReporter
from rpc.registration import member_of, registered
from rpc.worker_config import WorkerConfig
from rpc.worker_counters import WorkerCounters
from rpc.worker_metrics import WorkerMetrics, serve_metrics
from rpc.worker_service import WorkerService

logger = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
ROLES = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
    "both": worker_pb2.WORKER_ROLE_BOTH,
}
ROLE_SERVICES = {"prefill": "Prefill", "decode": "Decode", "both": "Decode"}


@dataclass(frozen=True, slots=True)
class WorkerCore:
    """What a role builds its services from."""

    config: WorkerConfig
    host: EngineHost
    channels: Channels
    counters: WorkerCounters
    drain: Drain

    @property
    def model_name(self) -> str:
        """Name of the served model."""
        return self.config.served_model_name or Path(self.config.engine.model).resolve().name


class WorkerServices(Protocol):
    """What a role adds to a worker."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the role's services to the server."""
        ...

    async def close(self) -> None:
        """Ends every request; returns when nothing is written into any block any more."""
        ...


async def serve_worker(config: WorkerConfig, build: Callable[[WorkerCore], WorkerServices]) -> None:
    """Loads the engine and serves until SIGTERM or SIGINT, then drains. Raises if the engine fails."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    progress = ProgressReporter(config.progress_fd)
    memory = SharedPool()
    engine = await _load(lambda: Engine(config.engine, memory.allocate, progress.loading))
    identity = PoolIdentity(uuid.uuid4().hex, engine.fingerprint)
    host = EngineHost(engine, create_transport(config.transport, identity, memory, config.host))
    core = WorkerCore(config, host, Channels(), WorkerCounters(), Drain())
    services = build(core)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    health_servicer = HealthServicer()
    services.register(server)
    description, names = _register_common(server, core, health_servicer)
    host.start()
    await server.start()
    for name in ("", *names):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    if config.metrics_port is not None:
        serve_metrics(
            WorkerMetrics(host, core.counters, config.worker_id, core.model_name), config.host, config.metrics_port
        )
    progress.ready(address=description.address)
    logger.info("%s worker %s serves at %s", config.role, config.worker_id, description.address)
    try:
        member = member_of(description, core.config.role)
        async with registered(config.registry, member, config.lease_s, core.drain) as registration:
            await _wait(stopping, host.failed, registration)
            core.drain.begin()
            await health_servicer.enter_graceful_shutdown()
            await _drain(core)
    finally:
        await services.close()
        await server.stop(STOP_GRACE_S)
        await host.stop()
        await core.channels.close()
        await host.transport.close()
        memory.close()


async def _load(make_engine: Callable[[], Engine]) -> Engine:
    """Makes the engine on a thread that ends with it.

    OpenMP keeps a team of threads for each thread that ever computed. A second team, even an idle one, is more threads
    than cores, and then the waits between the parallel parts of a step are slept through and not spun: on two cores a
    decode step took half as long again.
    """
    with ThreadPoolExecutor(1, "load") as loader:
        return await asyncio.get_running_loop().run_in_executor(loader, make_engine)


def _register_common(
    server: grpc.aio.Server, core: WorkerCore, health_servicer: HealthServicer
) -> tuple[worker_pb2.WorkerDescription, list[str]]:
    """Adds what every worker serves, and binds the port; returns who we are and the names of the worker services."""
    config, host = core.config, core.host
    port = server.add_insecure_port(host_port(config.host, config.port))
    description = worker_pb2.WorkerDescription(
        worker_id=config.worker_id,
        incarnation=host.pool.incarnation,
        role=ROLES[config.role],
        address=host_port(config.host, port),
        model=core.model_name,
        fingerprint=host.fingerprint,
        block_size=host.config.block_size,
        num_blocks=host.pool.num_blocks,
        max_model_len=host.finish_rule.max_model_len,
        pool=pool_to_proto(host.pool),
        transport=config.transport,
        max_num_seqs=config.engine.max_num_seqs,
        max_num_batched_tokens=config.engine.max_num_batched_tokens,
    )

    def transport_choices() -> dict[str, str]:
        return {peer: f"{choice.transport}: {choice.reason}" for peer, choice in host.transport.choices.items()}

    service = WorkerService(host, core.counters, core.drain, lambda: description, transport_choices)
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
    worker_pb2_grpc.add_KVSourceServicer_to_server(KVSourceService(host, core.drain), server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    services = worker_pb2.DESCRIPTOR.services_by_name
    names = [services[name].full_name for name in ("Worker", "KVSource", ROLE_SERVICES[config.role])]
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    return description, names


async def _wait(stopping: asyncio.Event, *failures: asyncio.Future[None]) -> None:
    """Returns at a signal; raises what one of the others fails with."""
    stop = asyncio.ensure_future(stopping.wait())
    waits: list[asyncio.Future[Any]] = [stop, *failures]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    for failure in failures:
        if failure.done():
            failure.result()


async def _drain(core: WorkerCore) -> None:
    """Returns once no request is left, the time is over, or the engine fails."""
    idle = asyncio.ensure_future(core.drain.wait_idle())
    waits: list[asyncio.Future[Any]] = [idle, core.host.failed]
    await asyncio.wait(waits, timeout=core.config.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not idle.done():
        logger.warning("%d requests had not ended when the drain was over", core.drain.num_requests)
        idle.cancel()

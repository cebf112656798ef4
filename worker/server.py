"""The worker process of any role: engine, transport, gRPC server, health, drain."""

import asyncio
import logging
import signal
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from baton.doctor.finding import require_fit
from baton.doctor.known_peers import KnownPeers
from baton.doctor.machine import examine_machine
from baton.doctor.service import DoctorService
from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.execution.device import gpus_here
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.process.host_memory import host_memory
from baton.process.progress import ProgressReporter
from baton.protos import doctor_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.listening import listen
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import Channels
from baton.rpc.tls import Security, make_security
from baton.rpc.tracing.base import Tracer
from baton.rpc.tracing.factory import open_tracer
from baton.rpc.vllm_names import OF_WORKER, NamedSeries
from baton.worker.adapters.worker_adapters import WorkerAdapters
from baton.worker.config import WorkerConfig
from baton.worker.device import require_gpus
from baton.worker.drain import HAND_OFF_S, Drain
from baton.worker.engine_host import EngineHost
from baton.worker.expert_group import WorkerGroup, joined
from baton.worker.health import WorkerHealth
from baton.worker.kv.open_stores import open_stores
from baton.worker.life import Lives
from baton.worker.memory import with_kv_memory
from baton.worker.metrics import WorkerMetrics, serve_metrics
from baton.worker.ranks.node import run_node
from baton.worker.ranks.worker_ranks import WorkerRanks, follower_ranks, with_thread_share
from baton.worker.reporting import WorkerCounters
from baton.worker.role import RoleBuilders, WorkerCore
from baton.worker.watchdog import Watchdog

logger = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
ROOT_CAUSE_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 2.0  # for the services of a worker with follower ranks to close
STALL_S = 5.0  # wait of the engine for other ranks after which a drain past its timeout ends


async def serve_worker(config: WorkerConfig, builders: RoleBuilders) -> None:
    """Load the engine and serve until SIGTERM or SIGINT, then drain. Raises if the engine fails.

    `builders`: of the roles that the worker may have. On a worker's other nodes, only run their ranks.
    """
    if config.node_rank:
        await run_node(with_kv_memory(with_thread_share(config), host_memory()))
        return
    tracer = open_tracer(config.otlp_traces_endpoint, "baton-worker", config.worker_id)  # before a long load
    try:
        await _load_and_serve(config, builders, tracer)
    finally:
        if tracer is not None:
            await tracer.close()


async def _load_and_serve(config: WorkerConfig, builders: RoleBuilders, tracer: Tracer | None) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    progress = ProgressReporter(config.progress_fd)
    security = make_security(config.tls_cert, config.tls_key, config.tls_ca, config.tls_server_name)
    channels, incarnation = Channels(security), uuid.uuid4().hex
    require_gpus(config.engine.device, config.ranks_per_node, gpus_here())
    config = with_kv_memory(with_thread_share(config), host_memory())
    async with (
        joined(config, incarnation, security, channels) as group,
        follower_ranks(config, security, progress, stopping.set) as ranks,
    ):
        memory = SharedPool()
        experts = group.experts if group is not None else None
        tensor = ranks.tensor if ranks is not None else None

        def make_engine() -> Engine:
            return Engine(config.engine, memory.allocate, progress.loading, experts, tensor)

        if (engine := await _load(make_engine, stopping, group or ranks)) is None:
            return
        if ranks is not None:
            await ranks.loaded()
        identity = PoolIdentity(incarnation, engine.fingerprint)
        device = engine.pool.device
        transport = create_transport(config.transport, identity, memory, config.host, config.kv_port, device)
        followers = ranks.followers if ranks is not None else ()
        host = EngineHost(engine, transport, config.longest_step_s, followers)
        _log_capacity(config, host)
        if config.strict:
            require_fit(await asyncio.to_thread(examine_machine, host.pool.num_blocks * host.block_bytes))
        counters = WorkerCounters()
        stores = await asyncio.to_thread(open_stores, config, host, engine.pool, counters, followers)
        core = WorkerCore(config, host, channels, counters, Drain(), stores, WorkerAdapters(host, followers), tracer)
        await _serve(core, builders, security, progress, stopping, group, ranks)
    await channels.close()
    await transport.close()
    memory.close()


def _log_capacity(config: WorkerConfig, host: EngineHost) -> None:
    """Log the device and the capacity of the KV cache."""
    num_places = (host.pool.num_blocks - 1) // host.kv_groups.num_groups  # one block pads block tables
    num_tokens = num_places * host.config.block_size
    longest = host.finish_rule.max_model_len
    logger.info(
        "device %s (%s); the KV cache holds %d tokens in %.2f GiB: %.1f requests of the maximum length, %d tokens",
        *(config.engine.device, gpus_here().reason, num_tokens),
        *(host.pool.num_blocks * host.block_bytes / (1 << 30), num_tokens / longest, longest),
    )


async def _serve(
    core: WorkerCore,
    builders: RoleBuilders,
    security: Security,
    progress: ProgressReporter,
    stopping: asyncio.Event,
    group: WorkerGroup | None,
    ranks: WorkerRanks | None,
) -> None:
    """Serve from the engine's first step to its last."""
    config, host = core.config, core.host
    server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
    worker_health = WorkerHealth(server)
    peers = KnownPeers(config.registry)
    address = listen(server, security, config.host, config.port, config.uds)
    doctor = DoctorService(host.pool, host.ranks.size, config.host, config.transport, core.channels, peers)
    doctor_pb2_grpc.add_DoctorServicer_to_server(doctor, server)

    async def note_change(names: Sequence[str]) -> None:
        await worker_health.change(names)
        await watchdog.update_readiness()

    lives = Lives(core, builders, address, peers, note_change)
    server.add_generic_rpc_handlers((lives.table,))
    watchdog = Watchdog(host, lambda: lives.current.core.drain.has_begun, progress, worker_health.set_ready)
    host.start()
    core.stores.start()
    if group is not None:
        group.attach(host.call)
    if ranks is not None:
        ranks.attach(lambda: host.call(Engine.wake))
    await server.start()
    await worker_health.begin(lives.current.service_names)
    watching = asyncio.create_task(watchdog.run(), name="watchdog")
    if config.metrics_port is not None:
        metrics = WorkerMetrics(host, core.counters, config.worker_id, core.model_name)
        serve_metrics(NamedSeries(metrics, config.metrics_names, OF_WORKER), config.host, config.metrics_port)
    progress.ready(address=address)
    logger.info("%s worker %s serves at %s", config.role, config.worker_id, address)
    try:
        lives.start()
        failures = [*(each.failed for each in (group, ranks) if each is not None), host.failed, lives.failed, watching]
        await _wait_for_signal(stopping, failures, ranks)
        await lives.begin_end()
        await worker_health.end()
        await _drain(lives.current.core)
    finally:
        await _end(core, lives, server, group, ranks)
        watching.cancel()  # last: every step above may hang if the engine hangs


async def _end(
    core: WorkerCore, lives: Lives, server: grpc.aio.Server, group: WorkerGroup | None, ranks: WorkerRanks | None
) -> None:
    """Close the services, the server and the engine."""
    # First: the services wait for calls, which an engine that waits for other ranks does not run.
    if group is not None:
        await group.leave()
    if ranks is not None:
        ranks.leave_engine()
    await lives.withdraw()
    await _close(lives, ranks)
    await server.stop(STOP_GRACE_S)
    await core.stores.close()
    await core.host.stop()


async def _close(lives: Lives, ranks: WorkerRanks | None) -> None:
    """Close the role's services; a follower that does not let them close in time, since it hangs, is killed."""
    closing = asyncio.ensure_future(lives.close())
    if ranks is not None:
        await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT_S)
        if not closing.done():
            ranks.kill()
    await closing


async def _load(
    make_engine: Callable[[], Engine], stopping: asyncio.Event, group: WorkerGroup | WorkerRanks | None
) -> Engine | None:
    """Load the engine on a short-lived thread; return None if a signal came while it waited for its group.

    OpenMP keeps a team of threads for each thread that ever computed. With a second team, even an idle one, there are
    more threads than cores, and OpenMP sleeps instead of spinning between the parallel parts of a step: on two cores
    a decode step took 1.5 times as long.
    """
    with ThreadPoolExecutor(1, "load") as loader:
        loading = asyncio.get_running_loop().run_in_executor(loader, make_engine)
        if group is None:
            return await loading
        stop = asyncio.ensure_future(stopping.wait())
        waits: list[asyncio.Future[Any]] = [loading, stop, group.failed]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            group.leave_engine()  # ends its wait for the other ranks
        stop.cancel()
        try:
            return await loading
        except (EngineEnded, GroupBroken):
            if stopping.is_set():
                return None
            await _raise_root_cause(group)
            raise


async def _wait_for_signal(
    stopping: asyncio.Event, failures: Sequence[asyncio.Future[None]], ranks: WorkerRanks | None
) -> None:
    """Return at a signal; raise the error of the first future that fails, or why a rank was lost."""
    stop = asyncio.ensure_future(stopping.wait())
    waits: list[asyncio.Future[Any]] = [stop, *failures]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    try:
        for failure in failures:
            if failure.done():
                failure.result()
    except EngineEnded:
        if ranks is not None:
            await _raise_root_cause(ranks)
        raise


async def _raise_root_cause(ranks: WorkerGroup | WorkerRanks) -> None:
    """Raise the reason why a rank was lost if it is known within 2 s: it says more than the failures that follow."""
    await asyncio.wait([ranks.failed], timeout=ROOT_CAUSE_TIMEOUT_S)
    if ranks.failed.done():
        ranks.failed.result()


async def _drain(core: WorkerCore) -> None:
    """Return once the worker is idle, or other workers continue its requests. Raises if the engine fails."""
    drained = asyncio.ensure_future(core.drain.run(core.config.drain_timeout_s, final=True))
    stalled = asyncio.ensure_future(_wait_stalled(core))
    waits: list[asyncio.Future[Any]] = [drained, core.host.failed, stalled]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stalled.cancel()
    if drained.done():
        if num_handed_off := drained.result():
            logger.warning(
                "%d requests did not finish within the drain timeout; other workers continue them", num_handed_off
            )
        return
    drained.cancel()
    if core.host.failed.done():
        core.host.failed.result()
    logger.warning(
        "the engine still waits for other ranks after the drain timeout; %d requests or reads of KV are ended",
        core.drain.num_requests,
    )


async def _wait_stalled(core: WorkerCore) -> None:
    """Return once the engine has waited for other ranks for `STALL_S` after the drain's timeout.

    Such an engine neither ends the requests that were handed off nor lets other workers read their KV.
    """
    await asyncio.sleep(core.config.drain_timeout_s + HAND_OFF_S)
    await core.host.wait_stalled(STALL_S)

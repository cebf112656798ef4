"""The router process: connections to the workers, HTTP and gRPC servers, graceful shutdown."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # `health.aio` is this module, under a name type checkers miss

from baton.process.progress import ProgressReporter
from baton.protos.open_inference_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from baton.protos.router_pb2_grpc import add_InferenceServicer_to_server
from baton.router.auth.cache_secret import agreed
from baton.router.batches.runner import run_batches
from baton.router.config import RouterConfig
from baton.router.errors import Draining
from baton.router.grpc.auth_interceptor import GateInterceptor
from baton.router.grpc.message_bounds import KSERVE_NAME, SERVICE_NAME, MessageBounds
from baton.router.grpc.server import InferenceService
from baton.router.http.app import make_http_app
from baton.router.http.certificate import make_certificate
from baton.router.http.server import BACKLOG, STOP_GRACE_S, HttpServer
from baton.router.http.shared_socket import shared_socket
from baton.router.kserve.grpc_service import OPEN_METHODS, KServeService
from baton.router.pins.prefix_files import pin_files, read_prefix_files
from baton.router.served_models import ServedModels
from baton.router.service import RouterService, make_service
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.listening import listen
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.reflection import enable_reflection
from baton.settings.names import host_port

NEW_OBJECTS = 50_000  # allocations between two automatic collections of the youngest generation
INTERVAL_S = 10.0  # minimum time between two full collections
BUSY_INTERVAL_S = 120.0  # the same while requests are in flight: a collection takes some ms for 1,000 of them
LONGEST_S = 0.5  # of a full collection, during which the event loop is blocked
FIRST_S_PER_BLOCK = 1e-7  # time of a full collection by memory blocks, until one was measured
LEAST_BLOCKS = 100_000  # below that a collection's time does not say how long one of more blocks takes
NEVER = 1 << 30


class GarbageCollector:
    """Settings and schedule of the process's garbage collector.

    The duration of a full collection grows with the heap. If one would take too long, only young objects are collected:
    a router that stalls for seconds loses its workers, or its watchdog ends it.
    """

    def __init__(self, interval_s: float = INTERVAL_S, busy_interval_s: float = BUSY_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._busy_interval_s = busy_interval_s
        self._s_per_block = FIRST_S_PER_BLOCK
        self._num_frozen_blocks = 0
        self._is_limited = False  # the last collection was of young objects alone
        gc.set_threshold(NEW_OBJECTS, 50, NEVER)  # full collections are ours alone

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Collect garbage periodically. Freezes all objects that exist now: they live as long as the process."""
        gc.collect()
        gc.freeze()
        self._num_frozen_blocks = sys.getallocatedblocks()
        busy_s = 0.0
        while True:
            await asyncio.sleep(self._interval_s)
            busy_s += self._interval_s
            if is_idle() or busy_s >= self._busy_interval_s:
                self.collect()
                busy_s = 0.0

    def collect(self) -> None:
        """Collect all garbage, or that of young objects alone."""
        gc.collect(1)  # what it frees does not count for the full collection's time
        num_blocks = max(sys.getallocatedblocks() - self._num_frozen_blocks, 1)
        was_limited, self._is_limited = self._is_limited, num_blocks * self._s_per_block > LONGEST_S
        if self._is_limited:
            if not was_limited:
                logger.warning("%d memory blocks are too many for a full garbage collection", num_blocks)
            return
        begun_s = time.thread_time()
        gc.collect()
        self._s_per_block = max((time.thread_time() - begun_s) / max(num_blocks, LEAST_BLOCKS), FIRST_S_PER_BLOCK)


logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005  # a thread that parses a large body yields the GIL to the event loop this often, if it can
WORKERS_TIMEOUT_S = 2.0  # maximum wait for the workers' state before the first request is accepted
POLL_S = 0.01
BATCHES_END_S = 10.0  # maximum wait for the batches' last writes
MAX_CALLS = 1024  # concurrent calls of one gRPC connection, including Health.Watch calls, which need no key


async def run(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises if the model's files or the addresses are unusable."""
    stopping = asyncio.Event()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await serve(config, stopping, GarbageCollector())


async def serve(config: RouterConfig, stopping: asyncio.Event, garbage: GarbageCollector | None = None) -> None:
    """Serve until `stopping` is set, then drain. `garbage`: only if the process runs nothing else."""
    certificate = make_certificate(config)
    progress = ProgressReporter(config.progress_fd)
    async with AsyncExitStack() as heartbeat_stack, AsyncExitStack() as stack:
        listener = stack.enter_context(_bind(config))
        prefix_files = await asyncio.to_thread(read_prefix_files, config.pin_prefix)
        service = await asyncio.to_thread(make_service, config)
        for model in service.models:
            stack.callback(model.tokenizer.close)
            stack.push_async_callback(model.images.close)
        if service.recording is not None:
            await stack.enter_async_context(service.recording)
        if service.files is not None:
            stack.callback(service.files.disk.close)
        if service.response_store is not None:
            stack.push_async_callback(service.response_store.close)
        await pin_files(next(iter(service.models)), prefix_files)
        await stack.enter_async_context(agreed(service.cache_secret, config.registry))
        running = [asyncio.create_task(model.pool.run(), name="worker pool") for model in service.models]
        for pool in running:
            stack.push_async_callback(_cancel, pool)
        for model in service.models:
            reporting = asyncio.create_task(model.reporter.run(), name="reports")
            stack.push_async_callback(_cancel, reporting)
            reading = asyncio.create_task(model.plan.run(), name="plans")
            stack.push_async_callback(_cancel, reading)
            keeping = asyncio.create_task(model.pins.run(), name="pins")
            stack.push_async_callback(_cancel, keeping)
        for catalog in service.models.catalogs:
            stack.push_async_callback(catalog.table.close)
            running.append(asyncio.create_task(catalog.run(), name="adapters"))
            stack.push_async_callback(_cancel, running[-1])
        if service.group is not None:
            await stack.enter_async_context(service.group)
        await _wait_for_workers(service.models)
        health_servicer = HealthServicer()
        grpc_server, grpc_address = await _start_grpc(config, service, health_servicer)
        stack.push_async_callback(grpc_server.stop, STOP_GRACE_S)
        http_app = make_http_app(service)
        stack.callback(http_app.close)
        http_server = HttpServer(http_app, certificate, config.body_timeout_s)
        http = asyncio.create_task(http_server.serve([listener]), name="HTTP server")
        await _wait_or_fail((http, *running), http_server.listening.wait())
        batches = asyncio.create_task(run_batches(service, http_app.posts), name="batches")
        stack.push_async_callback(_cancel, batches, BATCHES_END_S)
        if garbage is not None:
            collecting = asyncio.create_task(garbage.run(lambda: not service.models.num_inflight), name="garbage")
            stack.push_async_callback(_cancel, collecting)
        address = host_port(config.host, listener.getsockname()[1])
        progress.ready(address=address, grpc_address=grpc_address)
        heartbeats = asyncio.create_task(progress.send_heartbeats(), name="heartbeats")
        heartbeat_stack.push_async_callback(_cancel, heartbeats)  # cancelled last: shutting down may take long
        logger.info("router serves %s at %s://%s", ", ".join(service.models.names), config.scheme, address)
        try:
            await _wait_or_fail((http, *running), stopping.wait())
            end_s = time.monotonic() + config.drain_timeout_s
            service.models.begin_drain()
            http_app.leave()
            batches.cancel()  # another router continues the batches; a hung disk must not keep the listeners open
            await health_servicer.enter_graceful_shutdown()
            grpc_end = asyncio.create_task(grpc_server.stop(config.drain_timeout_s + STOP_GRACE_S), name="gRPC server")
            stack.push_async_callback(_cancel, grpc_end)  # it waits for all calls, Health.Watch included
            await http_server.leave(listener, config.drain_timeout_s)  # clients connect to other routers
            await _drain(service, max(end_s - time.monotonic(), POLL_S))
        finally:
            http_server.should_exit = True
            await http


async def _start_grpc(
    config: RouterConfig, service: RouterService, health_servicer: HealthServicer
) -> tuple[grpc.aio.Server, str | None]:
    """Start the gRPC server, on no port if the config has none. Return it and its address."""
    options = {
        **dict(SERVER_OPTIONS),
        "grpc.so_reuseport": int(service.group is not None),
        "grpc.max_receive_message_length": config.max_body_bytes,
        "grpc.max_concurrent_streams": MAX_CALLS,
    }
    gates = []
    if config.needs_key:
        gates = [GateInterceptor(service.gate, SERVICE_NAME), GateInterceptor(service.gate, KSERVE_NAME, OPEN_METHODS)]
    interceptors = [*gates, RefuseMalformed(MessageBounds(service.models.context_len).check)]
    server = grpc.aio.server(interceptors=interceptors, options=tuple(options.items()))
    add_InferenceServicer_to_server(InferenceService(service), server)
    add_GRPCInferenceServiceServicer_to_server(KServeService(service), server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    enable_reflection(server, [SERVICE_NAME, KSERVE_NAME, health.SERVICE_NAME])
    address = None
    if config.grpc_port is not None:
        address = listen(server, service.security, config.host, config.grpc_port)
    await server.start()
    for service_name in ("", SERVICE_NAME, KSERVE_NAME):
        await health_servicer.set(service_name, health_pb2.HealthCheckResponse.SERVING)
    return server, address


def _bind(config: RouterConfig) -> socket.socket:
    """Return the HTTP server's socket. Raises OSError if the address is in use.

    It listens at once, so clients wait while the router starts. One of several processes does not listen until it is
    ready: the others serve the clients meanwhile.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    if config.process is None:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    return shared_socket(config.host, config.port)


async def _wait_for_workers(models: ServedModels) -> None:
    """Wait until the pools know the workers and their caches, at most `WORKERS_TIMEOUT_S`.

    Until then other routers place requests better.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(WORKERS_TIMEOUT_S):
            while degraded := [model.pool for model in models if model.pool.is_degraded]:
                await degraded[0].wait_change(POLL_S)


async def _wait_or_fail(tasks: Sequence[asyncio.Task[None]], wait: Coroutine[object, object, object]) -> None:
    """Wait for `wait`. Raises if a task, which should run until the end, ends first."""
    waiting = asyncio.ensure_future(wait)
    await asyncio.wait((*tasks, waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            waiting.cancel()
            task.result()
            raise RuntimeError(f"the {task.get_name()} ended unexpectedly")


async def _drain(service: RouterService, timeout_s: float) -> None:
    """Wait for running requests and undelivered output, then fail the rest and reject new requests."""
    end_s = time.monotonic() + timeout_s
    models = service.models
    if not await models.wait_idle(timeout_s):
        logger.warning("%d completions had not finished within the drain timeout", models.num_inflight)
        models.end(Draining("the router is shutting down, and its drain timeout has expired"))
        await models.wait_idle(STOP_GRACE_S)
    if not await service.unread.wait_delivered(max(end_s - time.monotonic(), STOP_GRACE_S)):
        logger.warning("%d bytes of output were not read by clients within the drain timeout", service.unread.num_bytes)


async def _cancel(task: asyncio.Task[None], timeout_s: float | None = None) -> None:
    """Cancel a task, unless it was, and wait for its end. `timeout_s`: maximum wait; None: until it ends."""
    if not task.cancelling():
        task.cancel()
    ended, _ = await asyncio.wait((task,), timeout=timeout_s)
    if not ended:
        logger.warning("the %s have not ended within %g s", task.get_name(), timeout_s)
    elif not task.cancelled():
        task.exception()  # retrieved

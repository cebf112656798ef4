"""The router process: connections to the workers, HTTP and gRPC servers, graceful shutdown."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
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
from baton.router.garbage import GarbageCollector
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
        service = await _open_service(config, stack)
        running = _run_models(service.models, stack)
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
            _start(garbage.run(lambda: not service.models.num_inflight), "garbage", stack)
        address = host_port(config.host, listener.getsockname()[1])
        progress.ready(address=address, grpc_address=grpc_address)
        _start(progress.send_heartbeats(), "heartbeats", heartbeat_stack)  # cancelled last: shutting down may take long
        logger.info("router serves %s at %s://%s", ", ".join(service.models.names), config.scheme, address)
        try:
            await _wait_or_fail((http, *running), stopping.wait())
            end_s = time.monotonic() + config.drain_timeout_s
            service.models.begin_drain()
            http_app.leave()
            batches.cancel()  # another router continues the batches; a hung disk must not keep the listeners open
            await health_servicer.enter_graceful_shutdown()
            # It waits for all calls, Health.Watch included.
            _start(grpc_server.stop(config.drain_timeout_s + STOP_GRACE_S), "gRPC server", stack)
            await http_server.leave(listener, config.drain_timeout_s)  # clients connect to other routers
            await _drain(service, max(end_s - time.monotonic(), POLL_S))
        finally:
            http_server.should_exit = True
            await http


async def _open_service(config: RouterConfig, stack: AsyncExitStack) -> RouterService:
    """Return the service, whose models and stores the stack closes. Raises if a file is unusable."""
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
    return service


def _run_models(models: ServedModels, stack: AsyncExitStack) -> list[asyncio.Task[None]]:
    """Start the tasks of all models; return those that end only if the router cannot serve."""
    running = [_start(model.pool.run(), "worker pool", stack) for model in models]
    for model in models:
        _start(model.reporter.run(), "reports", stack)
        _start(model.plan.run(), "plans", stack)
        _start(model.pins.run(), "pins", stack)
    for catalog in models.catalogs:
        stack.push_async_callback(catalog.table.close)
        running.append(_start(catalog.run(), "adapters", stack))
    return running


def _start(run: Coroutine[object, object, None], name: str, stack: AsyncExitStack) -> asyncio.Task[None]:
    """Start a task that the stack cancels."""
    task = asyncio.create_task(run, name=name)
    stack.push_async_callback(_cancel, task)
    return task


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

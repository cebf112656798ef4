"""Ray Serve replicas. Each runs one Baton process; tokens do not pass through the replica.

1. The constructor starts the process on the node where Ray placed the replica, with the GPUs that Ray assigned, and
   returns once it is ready, or raises with the process's error. Workers and routers find each other in the registry.
2. Serve checks the replica's health: the process runs, its server responds, and a worker's engine steps.
3. When the process dies, the replica exits and Serve replaces it. When the replica dies, its process ends too, because
   it holds a lifeline.
4. A worker whose ranks lie on several nodes has an actor on each other node (`nodes.py`); all end together.
5. At shutdown the process drains: a worker finishes or hands over its requests, a router finishes its requests.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from ray import serve
from ray.util import get_node_ip_address
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton.deployment.local.machine import this_machine
from baton.deployment.ray.application import application_name
from baton.deployment.ray.child import ReplicaChild
from baton.deployment.ray.forward import Forward
from baton.deployment.ray.nodes import OtherNodes
from baton.deployment.ray.options import ReplicaOptions
from baton.deployment.ray.process import Place, rendezvous_process, router_process, share_of, worker_process
from baton.deployment.ray.settings import RENDEZVOUS, ROUTER, RaySettings, SharedOptions
from baton.rpc.tls import Security, make_security
from baton.settings.names import Role
from baton.worker.health import LIVENESS

logger = logging.getLogger("ray.serve")  # Serve writes it to the replica's log

UNHEALTHY_DRAIN_S = 5.0  # for a process that failed its last health check, which could hardly hand anything over
KILL_MARGIN_S = 2.0  # before Serve kills the replica


class Unhealthy(Exception):
    """The replica's process failed a health check."""


class Keeper:
    """Link between a replica and its process: each ends when the other does."""

    def __init__(self, child: ReplicaChild, drain_s: float) -> None:
        self.child = child
        self._drain_s = drain_s
        self._is_healthy = True
        self._watch = child.watch(self._exit)

    def _exit(self, reason: str) -> None:
        """Exit the replica: Serve replaces a dead replica at its next check, an unhealthy one only after three."""
        logger.error("the replica's process has ended: %s", reason)
        logging.shutdown()
        os._exit(1)

    @contextmanager
    def health_check(self) -> Iterator[None]:
        """Record the result of a health check in the block: an exception means unhealthy."""
        try:
            yield
        except Exception:
            self._is_healthy = False
            raise
        self._is_healthy = True

    async def end(self) -> None:
        """Drain and end the process."""
        self._watch.cancel()
        await self.child.end(self._drain_s if self._is_healthy else UNHEALTHY_DRAIN_S)


class WorkerReplica:
    """Owner of one worker process."""

    _keeper: Keeper | None = None  # None: no process yet

    async def __init__(self, settings: RaySettings, role: Role, *_: object) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start the process. Raises NotReady, OptionError or EngineError; Serve logs it and retries elsewhere."""
        options = settings.deployments[role].replicas
        name = f"{role}-{serve.get_replica_context().replica_tag}"
        self._security = security_of(settings.shared)
        self._check_timeout_s = options.health_check_timeout_s
        self._nodes = OtherNodes(settings, role, name)
        try:
            with worker_process(settings, role, name, here(options)) as spec:
                child = await ReplicaChild.start(spec, options.start_timeout_s, self._nodes.start, self._nodes.lost)
        except BaseException:
            self._nodes.end()
            raise
        self._name, self._address = name, child.address
        self._keeper = Keeper(child, settings.shutdown_timeout_s(role) - KILL_MARGIN_S)
        logger.info("worker %s serves at %s (process %d)", name, child.address, child.pid)

    async def __call__(self, _: Request) -> Response:
        """Return the worker's id and address. Completions are requested from a router instead."""
        return JSONResponse({"worker_id": self._name, "address": self._address})

    async def check_health(self) -> None:
        """Raise Unhealthy, or the call's error, unless the worker reports that its engine steps."""
        assert self._keeper is not None
        with self._keeper.health_check():
            if not await is_serving(self._security, self._address, LIVENESS, self._check_timeout_s):
                raise Unhealthy(f"{self._name} reports that its engine does not step")

    async def __del__(self) -> None:
        """Drain the worker; Serve waits for it."""
        if self._keeper is not None:
            await self._keeper.end()
            self._nodes.end()


class RouterReplica:
    """Owner of one router process, to which it forwards requests of Serve's HTTP server."""

    _keeper: Keeper | None = None  # None: no process yet

    async def __init__(self, settings: RaySettings, *_: object) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start the process. Raises NotReady, OptionError or EngineError; Serve logs it and retries elsewhere."""
        options = settings.deployments[ROUTER].replicas
        name = f"{ROUTER}-{serve.get_replica_context().replica_tag}"
        spec = router_process(settings, name, here(options))
        child = await ReplicaChild.start(spec, options.start_timeout_s)
        scheme = "https" if settings.cluster.router.get("ssl_certfile") else "http"
        self._url = f"{scheme}://{child.address}"
        self._check_timeout_s = options.health_check_timeout_s
        self._forward = Forward(self._url)
        self._keeper = Keeper(child, settings.shutdown_timeout_s(ROUTER) - KILL_MARGIN_S)
        logger.info("router %s serves at %s (process %d)", name, self._url, child.pid)

    async def __call__(self, request: Request) -> Response:
        """Forward the request to the router."""
        return await self._forward(request)

    async def check_health(self) -> None:
        """Raise Unhealthy, or the request's error, unless the router responds."""
        assert self._keeper is not None
        with self._keeper.health_check():
            async with httpx.AsyncClient(timeout=self._check_timeout_s, trust_env=False, verify=False) as client:
                response = await client.get(f"{self._url}/health")
            if not response.is_success:
                raise Unhealthy(f"{self._url}/health returned {response.status_code}")

    async def __del__(self) -> None:
        """Drain the router; Serve waits for it."""
        if self._keeper is not None:
            await self._keeper.end()
            await self._forward.close()


def here(replica: ReplicaOptions) -> Place:
    """Return this replica's node and its share of it."""
    address = get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray has no types for it
    application = application_name(serve.get_replica_context().app_name)
    return Place(address, share_of(this_machine(), replica), application)


async def is_serving(security: Security, address: str, service: str, timeout_s: float) -> bool:
    """Return whether the gRPC health service reports SERVING. Raises AioRpcError if it does not respond."""
    async with security.channel(address) as channel:
        response = await HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=timeout_s)
    return bool(response.status == HealthCheckResponse.SERVING)


def security_of(shared: SharedOptions) -> Security:
    """Return the TLS settings between processes. Raises OptionError for missing or invalid files."""
    return make_security(shared.tls_cert, shared.tls_key, shared.tls_ca, shared.tls_server_name)


WHOLE_SERVER = ""  # in gRPC's health protocol


class RendezvousReplica:
    """Owner of the rendezvous process."""

    _keeper: Keeper | None = None  # None: no process yet

    async def __init__(self, settings: RaySettings) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start the process. Raises NotReady or OptionError; Serve logs it and retries elsewhere."""
        options = settings.deployments[RENDEZVOUS].replicas
        name = f"{RENDEZVOUS}-{serve.get_replica_context().replica_tag}"
        self._security = security_of(settings.shared)
        self._check_timeout_s = options.health_check_timeout_s
        with rendezvous_process(settings, name, here(options)) as spec:
            child = await ReplicaChild.start(spec, options.start_timeout_s)
        self._name, self._address = name, child.address
        self._keeper = Keeper(child, settings.shutdown_timeout_s(RENDEZVOUS) - KILL_MARGIN_S)
        logger.info("%s serves at %s (process %d)", name, child.address, child.pid)

    async def __call__(self, _: Request) -> Response:
        """Return the rendezvous's address."""
        return JSONResponse({"address": self._address})

    async def check_health(self) -> None:
        """Raise Unhealthy, or the call's error, unless the rendezvous reports that it serves."""
        assert self._keeper is not None
        with self._keeper.health_check():
            if not await is_serving(self._security, self._address, WHOLE_SERVER, self._check_timeout_s):
                raise Unhealthy(f"{self._name} reports that it does not serve")

    async def __del__(self) -> None:
        """End the rendezvous after its members; Serve waits for it."""
        if self._keeper is not None:
            await self._keeper.end()

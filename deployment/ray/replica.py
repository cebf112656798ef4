"""The replicas of an application on Ray Serve. Each runs one of our processes; tokens do not pass through it.

1. The constructor starts the process on the node where Ray placed the replica, with the GPUs that Ray gave it, and
   returns once it is ready, or fails with the process's own words. Workers and routers meet in the registry.
2. Serve asks for the replica's health: the process runs, its server answers, and a worker's engine steps.
3. A process that dies takes its replica with it, and Serve replaces that. A replica that dies takes its process with
   it, for the process holds a lifeline.
4. At the end the process drains: a worker finishes or hands on what it has, a router finishes what it has.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import httpx
import ray
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from ray import serve
from ray.util import get_node_ip_address
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton.deployment.local.machine import this_machine
from baton.deployment.ray.child import ReplicaChild
from baton.deployment.ray.forward import Forward
from baton.deployment.ray.process import Place, rendezvous_process, router_process, share_of, worker_process
from baton.deployment.ray.settings import RENDEZVOUS, ROUTER, RaySettings, SharedOptions
from baton.rpc.tls import Security, make_security
from baton.settings.worker_config import Role
from baton.worker.health import LIVENESS

logger = logging.getLogger("ray.serve")  # Serve writes it to the replica's log

SICK_DRAIN_S = 5.0  # of a process whose last look found it sick: it could not hand on much
NAME_CHARS = 16
KILL_MARGIN_S = 2.0  # before Serve itself ends a replica by force on which it has no requests of its own


class Unhealthy(Exception):
    """The replica's process does not do its work."""


class Keeper:
    """Keeps a replica's process: ends the replica when it dies, and the process when the replica ends."""

    def __init__(self, child: ReplicaChild, drain_s: float) -> None:
        self.child = child
        self._drain_s = drain_s
        self._is_healthy = True
        self._watch = child.watch(self._leave)

    def _leave(self, reason: str) -> None:
        """Ends this process: Serve replaces a dead replica at its next look, a sick one after three."""
        logger.error("the process of this replica ended: %s", reason)
        logging.shutdown()
        os._exit(1)

    @contextmanager
    def look(self) -> Iterator[None]:
        """A look at the process's health; an error within says that it is sick."""
        try:
            yield
        except Exception:
            self._is_healthy = False
            raise
        self._is_healthy = True

    async def end(self) -> None:
        """Has the process drain and end."""
        self._watch.cancel()
        await self.child.end(self._drain_s if self._is_healthy else SICK_DRAIN_S)


class WorkerReplica:
    """Owns one worker process."""

    _keeper: Keeper | None = None  # as long as there is no process

    async def __init__(self, settings: RaySettings, role: Role, *_: object) -> None:  # type: ignore[misc]  # Serve awaits it
        """Raises NotReady, OptionError or EngineError; Serve tells it, and tries again elsewhere."""
        options = settings.deployments[role].replicas
        name = f"{role}-{serve.get_replica_context().replica_tag}"
        self._security = security_of(settings.shared)
        self._look_s = options.health_check_timeout_s
        with worker_process(settings, role, name, here(options.num_cpus)) as spec:
            child = await ReplicaChild.start(spec, options.start_timeout_s)
        self._name, self._address = name, child.address
        self._keeper = Keeper(child, settings.shutdown_timeout_s(role) - KILL_MARGIN_S)
        logger.info("worker %s serves at %s (process %d)", name, child.address, child.pid)

    async def __call__(self, _: Request) -> Response:
        """Who this is: requests for tokens go to a router."""
        return JSONResponse({"worker_id": self._name, "address": self._address})

    async def check_health(self) -> None:
        """Raises Unhealthy, or the call's error, if the worker does not answer that its engine steps."""
        assert self._keeper is not None
        with self._keeper.look():
            if not await is_serving(self._security, self._address, LIVENESS, self._look_s):
                raise Unhealthy(f"{self._name} says that its engine does not step")

    async def __del__(self) -> None:
        """The worker drains; Serve waits for it."""
        if self._keeper is not None:
            await self._keeper.end()


class RouterReplica:
    """Owns one router process, and passes on to it what clients ask of Serve's own HTTP server."""

    _keeper: Keeper | None = None  # as long as there is no process

    async def __init__(self, settings: RaySettings, *_: object) -> None:  # type: ignore[misc]  # Serve awaits it
        """Raises NotReady, OptionError or EngineError; Serve tells it, and tries again elsewhere."""
        options = settings.deployments[ROUTER].replicas
        name = f"{ROUTER}-{serve.get_replica_context().replica_tag}"
        spec = router_process(settings, name, here(options.num_cpus))
        child = await ReplicaChild.start(spec, options.start_timeout_s)
        scheme = "https" if settings.cluster.router.get("ssl_certfile") else "http"
        self._url = f"{scheme}://{child.address}"
        self._look_s = options.health_check_timeout_s
        self._forward = Forward(self._url)
        self._keeper = Keeper(child, settings.shutdown_timeout_s(ROUTER) - KILL_MARGIN_S)
        logger.info("router %s serves at %s (process %d)", name, self._url, child.pid)

    async def __call__(self, request: Request) -> Response:
        """The router's answer."""
        return await self._forward(request)

    async def check_health(self) -> None:
        """Raises Unhealthy, or the request's error, if the router does not answer."""
        assert self._keeper is not None
        with self._keeper.look():
            async with httpx.AsyncClient(timeout=self._look_s, trust_env=False, verify=False) as client:
                answer = await client.get(f"{self._url}/health")
            if not answer.is_success:
                raise Unhealthy(f"{self._url}/health answers {answer.status_code}")

    async def __del__(self) -> None:
        """The router drains; Serve waits for it."""
        if self._keeper is not None:
            await self._keeper.end()
            await self._forward.close()


def here(num_cpus: float) -> Place:
    """Where this replica runs."""
    address = get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray has no types for it
    return Place(address, share_of(this_machine(), num_cpus), _application())


def _application() -> str:
    """What no other application on the same registry is called: one on another Ray may have the same name."""
    names = (ray.get_runtime_context().get_session_name(), serve.get_replica_context().app_name)
    return f"ray-{sha256('/'.join(names).encode()).hexdigest()[:NAME_CHARS]}"


async def is_serving(security: Security, address: str, service: str, timeout_s: float) -> bool:
    """What a process of ours says of its health. Raises AioRpcError if it says nothing."""
    async with security.channel(address) as channel:
        answer = await HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=timeout_s)
    return bool(answer.status == HealthCheckResponse.SERVING)


def security_of(shared: SharedOptions) -> Security:
    """How processes speak to each other. Raises OptionError for files that are no good here."""
    return make_security(shared.tls_cert, shared.tls_key, shared.tls_ca, shared.tls_server_name)


WHOLE_SERVER = ""  # in gRPC's health protocol


class RendezvousReplica:
    """Owns the rendezvous process."""

    _keeper: Keeper | None = None  # as long as there is no process

    async def __init__(self, settings: RaySettings) -> None:  # type: ignore[misc]  # Serve awaits it
        """Raises NotReady or OptionError; Serve tells it, and tries again elsewhere."""
        options = settings.deployments[RENDEZVOUS].replicas
        name = f"{RENDEZVOUS}-{serve.get_replica_context().replica_tag}"
        self._security = security_of(settings.shared)
        self._look_s = options.health_check_timeout_s
        with rendezvous_process(settings, name, here(options.num_cpus)) as spec:
            child = await ReplicaChild.start(spec, options.start_timeout_s)
        self._name, self._address = name, child.address
        self._keeper = Keeper(child, settings.shutdown_timeout_s(RENDEZVOUS) - KILL_MARGIN_S)
        logger.info("%s serves at %s (process %d)", name, child.address, child.pid)

    async def __call__(self, _: Request) -> Response:
        """Where it is."""
        return JSONResponse({"address": self._address})

    async def check_health(self) -> None:
        """Raises Unhealthy, or the call's error, if the rendezvous does not answer that it serves."""
        assert self._keeper is not None
        with self._keeper.look():
            if not await is_serving(self._security, self._address, WHOLE_SERVER, self._look_s):
                raise Unhealthy(f"{self._name} says that it does not serve")

    async def __del__(self) -> None:
        """The rendezvous ends after its members; Serve waits for it."""
        if self._keeper is not None:
            await self._keeper.end()

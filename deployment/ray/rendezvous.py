"""The replica of an application on Ray Serve that runs the rendezvous of its pools' groups.

There is one, if a pool's workers share a model's experts. It may end and come again elsewhere: members find it in the
registry, and their groups go on as they are meanwhile. When the whole application ends it stays until they have left.
"""

import logging

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton.deployment.ray.child import ReplicaChild
from baton.deployment.ray.process import rendezvous_process
from baton.deployment.ray.replica import KILL_MARGIN_S, Keeper, Unhealthy, here, is_serving, security_of
from baton.deployment.ray.settings import RENDEZVOUS, RaySettings

logger = logging.getLogger("ray.serve")  # Serve writes it to the replica's log

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

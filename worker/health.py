"""What a worker says of itself by grpc.health.v1."""

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # `health.aio` is this module, under a name type checkers miss

LIVENESS = "liveness"  # the engine steps; all other names: this worker would serve now


class WorkerHealth:
    """Answers health checks of a server and of the services that it has."""

    def __init__(self, server: grpc.aio.Server, names: Sequence[str]) -> None:
        self._servicer = HealthServicer()
        self._names = names
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def begin(self) -> None:
        """The worker serves."""
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.tell_ready(True)

    async def tell_ready(self, is_ready: bool) -> None:
        """Whether the worker would serve now."""
        statuses = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._servicer.set(name, statuses.SERVING if is_ready else statuses.NOT_SERVING)

    async def end(self) -> None:
        """The worker is about to leave: it would not serve, but its engine steps to the end."""
        await self.tell_ready(False)

"""A worker's grpc.health.v1 status."""

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # `health.aio` is this module, under a name type checkers miss

LIVENESS = "liveness"  # SERVING while the engine steps; all other names: while the worker is ready for requests


class WorkerHealth:
    """Health statuses of a server and its services."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._servicer = HealthServicer()
        self._names: Sequence[str] = ()
        self._is_ready = False
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def begin(self, names: Sequence[str]) -> None:
        """Report the worker as live and ready, with these services."""
        self._names = names
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(True)

    async def change(self, names: Sequence[str]) -> None:
        """Replace the services; their status stays the same."""
        for name in set(self._names).difference(names):
            await self._servicer.set(name, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        self._names = names
        await self.set_ready(self._is_ready)

    async def set_ready(self, is_ready: bool) -> None:
        """Report whether the worker is ready for requests."""
        self._is_ready = is_ready
        statuses = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._servicer.set(name, statuses.SERVING if is_ready else statuses.NOT_SERVING)

    async def end(self) -> None:
        """Report the worker as not ready; it stays live, since its engine steps until the end of the drain."""
        await self.set_ready(False)

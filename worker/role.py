"""The roles of workers: their numbers, their services, and the parts of a worker from which services are built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from baton.protos import worker_pb2
from baton.rpc.peers import Channels
from baton.rpc.tracing.base import Tracer
from baton.settings.names import Role
from baton.worker.adapters.base import NO_ADAPTERS, Adapters
from baton.worker.base import NO_STORES, Stores
from baton.worker.config import WorkerConfig
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost
from baton.worker.reporting import WorkerCounters

ROLES: dict[Role, worker_pb2.WorkerRole.ValueType] = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
    "both": worker_pb2.WORKER_ROLE_BOTH,
}
ROLE_SERVICES: dict[Role, tuple[str, ...]] = {
    "prefill": ("Prefill", "Embeddings"),
    "decode": ("Decode",),
    "both": ("Prefill", "Embeddings", "Decode"),
}


@dataclass(frozen=True, slots=True)
class WorkerCore:
    """The parts of a worker from which a role builds its services; `config` has the role."""

    config: WorkerConfig
    host: EngineHost
    channels: Channels
    counters: WorkerCounters
    drain: Drain
    stores: Stores = NO_STORES
    adapters: Adapters = NO_ADAPTERS
    tracer: Tracer | None = None  # None: no spans are exported

    @property
    def model_name(self) -> str:
        """Name of the served model."""
        return self.config.served_model_name or Path(self.config.engine.model).resolve().name


class WorkerServices(Protocol):
    """The services that a role adds to a worker."""

    def register(self, server: grpc.aio.Server) -> None:
        """Add the role's services to the server."""
        ...

    async def close(self) -> None:
        """End every request; return when no transfer writes into any block any more."""
        ...


# The roles that a process can have, and what builds the services of each.
RoleBuilders = Mapping[Role, Callable[[WorkerCore], WorkerServices]]

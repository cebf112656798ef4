"""A pool of workers without a router around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.membership.registry.base import Member, Registry
from baton.protos.worker_pb2 import WorkerRole
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.settings.names import Role
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

MODEL_NAME = "bundled_model"
ROLES: dict[int, Role] = {
    WorkerRole.WORKER_ROLE_PREFILL: "prefill",
    WorkerRole.WORKER_ROLE_DECODE: "decode",
    WorkerRole.WORKER_ROLE_BOTH: "both",
}


def member_of(worker: ScriptedWorker, model: str = MODEL_NAME) -> Member:
    """Return the registry's entry of a scripted worker."""
    return Member(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        role=ROLES[worker.role],
        address=worker.address,
        model=model,
        fingerprint=worker.fingerprint,
        block_size=BLOCK_SIZE,
        max_num_seqs=64,
    )


@asynccontextmanager
async def running_pool(registry: Registry, vocabulary: str = "") -> AsyncIterator[WorkerPool]:
    """Run a pool that follows the registry."""
    pool = WorkerPool(registry, MODEL_NAME, "router-1", watch_interval_ms=1, vocabulary=vocabulary)
    task = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.wait((task,))


def ready(pool: WorkerPool) -> set[str]:
    """Return the addresses of the workers that take requests."""
    return {each.address for each in pool.connections if each.state is ConnectionState.READY}

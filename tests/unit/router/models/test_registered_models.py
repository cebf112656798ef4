"""Workers of several models in one registry."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from baton.membership.registry.memory import MemoryRegistry
from baton.protos.worker_pb2 import WatchRequest, WorkerUpdate
from baton.router.workers.pool import WorkerPool
from baton.router.workers.worker_models import WorkerModels
from tests.unit.router.models.two_models import FIRST, OTHER, other_worker
from tests.unit.router.rigs.pools import member_of, ready
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


@asynccontextmanager
async def two_pools(*registries: MemoryRegistry) -> AsyncIterator[list[WorkerPool]]:
    """Run the pools of two models of one router, each with its own view of the registry."""
    models = WorkerModels((FIRST, OTHER))
    pools = [
        WorkerPool(registry, name, f"router-{name}", watch_interval_ms=1, models=models)
        for registry, name in zip(registries, models.names, strict=True)
    ]
    tasks = [asyncio.create_task(pool.run()) for pool in pools]
    try:
        yield pools
    finally:
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_each_pool_takes_the_workers_of_its_model(caplog: pytest.LogCaptureFixture) -> None:
    registry = MemoryRegistry()
    workers = [ScriptedWorker(), other_worker(), ScriptedWorker("decode-2")]
    workers[2].model = "unknown"
    async with AsyncExitStack() as stack:
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        pools = await stack.enter_async_context(two_pools(registry, registry))
        with caplog.at_level(logging.INFO):
            for worker in workers:
                registry.put(member_of(worker, worker.model))
            await until(lambda: all(map(ready, pools)))
        assert [ready(pool) for pool in pools] == [{workers[0].address}, {workers[1].address}]
        text = f"workers of other models are ignored: this router serves {FIRST}, {OTHER}, not unknown"
        assert caplog.messages.count(text) == 1
        assert [len(pool.connections) for pool in pools] == [1, 1]


class WatchedWorker(ScriptedWorker):
    """A worker of the other model that remembers the peers that a router names."""

    peers: set[str]

    async def Watch(self, request: WatchRequest, context: Any) -> AsyncIterator[WorkerUpdate]:  # noqa: N802
        self.peers = set(request.workers)
        async for update in super().Watch(request, context):
            yield update


async def test_a_fixed_address_belongs_to_the_pool_of_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    first, other = ScriptedWorker(), WatchedWorker("decode-1")
    other.model = OTHER
    async with AsyncExitStack() as stack:
        addresses = [await worker.start() for worker in (first, other)]
        for worker in (first, other):
            stack.push_async_callback(worker.stop)
        with caplog.at_level(logging.INFO):
            registries = [MemoryRegistry(addresses) for _ in range(2)]
            pools = await stack.enter_async_context(two_pools(*registries))
            await until(lambda: [ready(pool) for pool in pools] == [{first.address}, {other.address}])
            await until(lambda: [len(pool.connections) for pool in pools] == [1, 1])
        assert not [each for each in caplog.messages if "refused" in each or "is removed" in each]
        assert not any(pool.is_degraded for pool in pools)
        assert other.peers == set(addresses)  # a worker's peers may connect to the router later

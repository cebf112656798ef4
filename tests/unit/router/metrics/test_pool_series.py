"""Prometheus series of the pool as a whole."""

from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry

from baton.membership.registry.memory import MemoryRegistry
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL
from baton.router.metrics.pool_series import PoolSeries
from baton.router.workers import connection
from baton.router.workers.connection_state import ConnectionState
from tests.unit.router.rigs.pools import MODEL_NAME, ready, running_pool
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.unit.router.series import read_series


def workers(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Return the numbers of workers by role and state, without zeros."""
    found = {}
    for role, state in (
        (role, state) for role in ("prefill", "decode", "both", "unknown") for state in ConnectionState
    ):
        name = f'baton:workers{{model_name="{MODEL_NAME}",role="{role}",state="{state.value}"}}'
        if read_series(registry).get(name):
            found[role, state.value] = read_series(registry)[name]
    return found


def lost(registry: CollectorRegistry, role: str) -> float:
    """Return the number of lost workers of this role."""
    return read_series(registry)[f'baton:workers_lost_total{{model_name="{MODEL_NAME}",role="{role}"}}']


async def test_workers_are_counted_by_role_and_state_and_roles_without_any_are_zero() -> None:
    prefill, decode = ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL), ScriptedWorker()
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        addresses = [await prefill.start(), await decode.start(), "127.0.0.1:1"]
        for worker in (prefill, decode):
            stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry(addresses)))
        registry.register(PoolSeries(pool, MODEL_NAME))
        await until(lambda: ready(pool) == set(addresses[:2]))
        assert workers(registry) == {
            ("prefill", "ready"): 1,
            ("decode", "ready"): 1,
            ("unknown", "connecting"): 1,
        }
        assert read_series(registry)[f'baton:workers{{model_name="{MODEL_NAME}",role="both",state="ready"}}'] == 0


async def test_a_worker_that_dies_is_lost_and_one_that_drained_is_not() -> None:
    dies, drains = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        addresses = [await dies.start(), await drains.start()]
        for worker in (dies, drains):
            stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry(addresses)))
        registry.register(PoolSeries(pool, MODEL_NAME))
        await until(lambda: ready(pool) == set(addresses))
        drains.draining = True
        drains.news()
        await until(lambda: workers(registry).get(("decode", "draining")) == 1)
        await drains.stop()
        await until(lambda: workers(registry) == {("decode", "ready"): 1, ("unknown", "connecting"): 1})
        assert lost(registry, "decode") == 0
        await dies.stop()
        await until(lambda: workers(registry) == {("unknown", "connecting"): 2})
        assert lost(registry, "decode") == 1
        assert lost(registry, "prefill") == 0


async def test_losses_outlive_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GIVE_UP_S", 0.5)
    worker, registry = ScriptedWorker(), CollectorRegistry()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([await worker.start()])))
        registry.register(PoolSeries(pool, MODEL_NAME))
        await until(lambda: ready(pool) == {worker.address})
        [only] = pool.connections
        only.mark_listed(False)  # as when its lease ended
        await worker.stop()
        await until(lambda: pool.connections == [])
        assert lost(registry, "decode") == 1

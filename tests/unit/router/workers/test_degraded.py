"""The state of a router that lacks information: a snapshot is missing, or the registry is lost."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from baton.membership.registry.factory import open_registry
from baton.membership.registry.memory import MemoryRegistry
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL
from baton.router.workers import connection as worker_connection
from tests.redis_server import RedisServer, redis_server
from tests.unit.membership.registry.registry_members import kept
from tests.unit.router.rigs.pools import member_of, ready, running_pool
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_cached, wait_workers
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

LEASE_S = 10.0
RECOVERY_S = 2.0  # a restarted router has its full index after this
NUM_WORKERS, NUM_CACHED_BLOCKS = 8, 5_000


async def metric(router: RunningRouter, name: str) -> float:
    """Return one of the router's gauges."""
    lines = (await router.http.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith(f"baton:{name}{{")]
    return float(line.rsplit(" ", 1)[1])


async def told(router: RunningRouter) -> dict[str, Any]:
    """Return the router's part of `/workers`."""
    body: dict[str, Any] = (await router.http.get("/workers")).json()["router"]
    return body


async def wait_told(router: RunningRouter, name: str, value: object) -> None:
    """Wait until `/workers` reports these values of the router or its registry."""
    async with asyncio.timeout(20):
        while {**(body := await told(router)), **body["registry"]}[name] != value:
            await asyncio.sleep(0.01)


async def test_degraded_until_every_snapshot_has_come() -> None:
    quick, slow = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    slow.may_tell.clear()
    async with AsyncExitStack() as stack:
        addresses = (await quick.start(), await slow.start())
        stack.push_async_callback(quick.stop)
        stack.push_async_callback(slow.stop)
        router = await stack.enter_async_context(running_router(workers=addresses))
        stack.callback(slow.may_tell.set)
        await wait_workers(router.http, 1)
        assert (await router.http.get("/ready")).json() == {"status": "degraded", "registry": "connected"}
        body = await told(router)
        assert body["degraded"] is True
        assert body["unlearnt"] == [slow.address]
        assert await metric(router, "router_degraded") == 1
        slow.may_tell.set()
        await wait_told(router, "degraded", False)
        assert (await router.http.get("/ready")).json() == {"status": "ready", "registry": "connected"}
        assert await metric(router, "router_degraded") == 0


async def test_an_unreachable_worker_does_not_degrade_for_ever() -> None:
    registry = MemoryRegistry(["127.0.0.1:1"])
    async with running_pool(registry) as pool:
        assert pool.is_degraded  # nobody is listed yet
        await until(lambda: bool(pool.connections) and bool(pool.connections[0].last_error))
        assert not pool.is_degraded


async def test_a_silent_worker_does_not_degrade_the_router_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_connection, "DESCRIBE_TIMEOUT_S", 0.3)
    worker = ScriptedWorker()
    await worker.start()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # as a stopped process has it: who connects waits
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with running_pool(MemoryRegistry([address, worker.address])) as pool:
            await until(lambda: ready(pool) == {worker.address} and not pool.is_degraded)
            [connection] = [each for each in pool.connections if each.address == address]
            assert "Deadline" in connection.last_error
    await worker.stop()


async def test_a_worker_that_is_short_of_ranks_does_not_degrade() -> None:
    serving, short = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    short.short_of_ranks = True
    async with running_router(serving, short) as router:
        await wait_workers(router.http, 1, "short_of_ranks")
        await wait_told(router, "degraded", False)
        short.short_of_ranks = False
        short.cache(range(4 * BLOCK_SIZE))
        await wait_cached(router.http, short, 4)
        await wait_workers(router.http, 2, "ready")


async def test_a_restarted_router_rebuilds_its_index() -> None:
    registry = MemoryRegistry()
    workers = [ScriptedWorker(f"decode-{index}") for index in range(NUM_WORKERS)]
    for index, worker in enumerate(workers):
        await worker.start()
        worker.cache(range(index, index + NUM_CACHED_BLOCKS * BLOCK_SIZE))
        registry.put(member_of(worker))
    clock = asyncio.get_running_loop().time
    for _ in range(2):  # each a router that begins with nothing
        begun_s = clock()
        async with running_pool(registry) as pool:
            await until(lambda: not pool.is_degraded)
            assert clock() - begun_s < RECOVERY_S
            for worker in workers:
                assert pool.index.num_blocks(worker.incarnation) == NUM_CACHED_BLOCKS
    for worker in workers:
        await worker.stop()


async def test_the_loss_of_redis_is_reported_and_disturbs_no_request(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server: RedisServer = await stack.enter_async_context(redis_server(tmp_path))
        registry = open_registry(server.url)
        stack.push_async_callback(registry.close)
        worker = ScriptedWorker()
        await worker.start()
        stack.push_async_callback(worker.stop)
        await stack.enter_async_context(kept(registry.lease(member_of(worker), LEASE_S)))
        router = await stack.enter_async_context(running_router(registry=server.url))
        await wait_workers(router.http, 1, "ready")
        body = await told(router)
        assert body["registry"] == {"name": server.url[:-2], "connected": True, "error": None, "members": 1}
        await server.kill()
        await wait_told(router, "connected", False)
        assert str(server.port) in (await told(router))["registry"]["error"]
        ready = await router.http.get("/ready")
        assert (ready.status_code, ready.json()["registry"]) == (200, "lost")
        assert await metric(router, "registry_connected") == 0
        assert await metric(router, "router_degraded") == 0
        completion = await router.openai.completions.create(model="bundled_model", prompt="Once", max_tokens=4)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 4
        worker.cache(range(8))  # its stream goes on too
        await wait_cached(router.http, worker, 2)
        await server.start()
        await wait_told(router, "connected", True)
        await wait_told(router, "members", 1)
        assert await metric(router, "registry_connected") == 1
        assert await metric(router, "registry_members") == 1
        assert worker.num_watches == 1  # it was never connected to anew


async def test_without_a_first_list_a_router_is_degraded_and_not_ready(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    async with running_router(registry=server.url) as router:
        await wait_told(router, "connected", False)
        assert (await told(router))["degraded"] is True
        assert (await router.http.get("/ready")).status_code == 503


async def test_requests_are_never_handed_over_between_unequal_fingerprints() -> None:
    prefillers = [ScriptedWorker(f"prefill-{index}", WORKER_ROLE_PREFILL) for index in range(3)]
    decoders = [ScriptedWorker(f"decode-{index}") for index in range(3)]
    for index in range(3):
        prefillers[index].fingerprint = f"version-{index}"
        decoders[index].fingerprint = f"version-{index + 1}"  # the last has no prefill worker at all
    fingerprints = {worker.worker_id: worker.fingerprint for worker in (*prefillers, *decoders)}
    async with running_router(*prefillers, *decoders, policy="round_robin", local_prefill_below=0) as router:
        for index in range(12):
            prompt = f"{index} " + "again and " * 30
            await router.openai.completions.create(model="bundled_model", prompt=prompt, max_tokens=2)
    handed_over = 0
    for decode in decoders:
        for command in decode.commands:
            for peer in (command.prefill, command.prefix_source):
                if peer.worker_id:
                    assert fingerprints[peer.worker_id] == decode.fingerprint
                    handed_over += 1
    assert sum(len(decode.commands) for decode in decoders) == 12
    assert handed_over > 0

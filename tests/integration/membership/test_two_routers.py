"""Two routers with the same workers: the loss of the registry or of one router costs the other no request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.integration.completion_load import (
    NUM_PROMPTS,
    PROMPT_TOKENS,
    complete,
    completion_load,
)
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_router, wait_workers
from tests.integration.simulated_process import simulated
from tests.integration.together import together
from tests.redis_server import RedisServer, redis_server

NUM_WORKERS = 4
WORKERS = ("--prefill=2", "--decode=2", "--step-s=0.004", "--prefill-tokens-per-s=100000")
BLOCK_SIZE = 16
RECOVERY_S = 2.0  # limit for a restarted router to be no longer degraded
TIMEOUT_S = 30.0
CLIENTS_EACH = 3


@dataclass(frozen=True)
class TwoRouters:
    """Two routers and the registry of a test."""

    redis: RedisServer
    routers: tuple[RouterProcess, RouterProcess]
    stack: AsyncExitStack  # closed before the routers end

    async def clients(self, number: int, count: int = CLIENTS_EACH) -> list[httpx.AsyncClient]:
        """Return `count` clients of one router."""
        return [await self.stack.enter_async_context(self.routers[number].client()) for _ in range(count)]

    async def watchers(self) -> list[httpx.AsyncClient]:
        """Return one client per router for /workers, on separate connections."""
        return [(await self.clients(number, 1))[0] for number in range(2)]


async def cached_blocks(client: httpx.AsyncClient) -> dict[str, int]:
    """Return the number of cached blocks that a router knows of each worker."""
    return {each["worker_id"]: each["cached_blocks"] for each in (await client.get("/workers")).json()["workers"]}


@asynccontextmanager
async def two_routers(
    directory: Path, *simulations: tuple[str, ...], policy: str = "cost"
) -> AsyncIterator[TwoRouters]:
    """Run two routers that find the simulated workers of the given processes in Redis."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(directory / "redis"))
        registry = f"--registry={redis.url}"
        for flags in simulations:
            await stack.enter_async_context(simulated(f"--model={MODEL.name}", "--lease-s=2", registry, *flags))
        router_flags = (registry, "--port=0", f"--policy={policy}")
        routers = together(*(router_process(directory, *router_flags) for _ in range(2)))
        first, second = await stack.enter_async_context(routers)
        yield TwoRouters(redis, (first, second), await stack.enter_async_context(AsyncExitStack()))


@pytest.mark.slow
async def test_redis_ends_and_comes_back_under_load(tmp_path: Path) -> None:
    async with two_routers(tmp_path, WORKERS) as two:
        watchers = await two.watchers()
        for watcher in watchers:
            await wait_workers(watcher, NUM_WORKERS)
        async with completion_load(*await two.clients(0), *await two.clients(1)) as load:
            await load.more(10)
            for _ in range(2):
                await two.redis.kill()
                for watcher in watchers:
                    await wait_router(watcher, lambda view: not view["router"]["registry"]["connected"])
                    assert (await watcher.get("/ready")).json() == {"status": "ready", "registry": "lost"}
                await load.more(20)
                await two.redis.start()
                for watcher in watchers:
                    view = await wait_router(
                        watcher,
                        lambda view: (
                            view["router"]["registry"]["connected"]
                            and view["router"]["registry"]["members"] == NUM_WORKERS
                        ),
                    )
                    assert [worker["state"] for worker in view["workers"]] == ["ready"] * NUM_WORKERS
                await load.more(20)
    for router in two.routers:
        lost = [line for line in router.log().splitlines() if "no connection to" in line]
        assert all(line.endswith("the router closed the connection") for line in lost), lost  # at shutdown


async def test_a_killed_router_does_not_affect_the_other_and_recovers_its_index(tmp_path: Path) -> None:
    async with two_routers(tmp_path, WORKERS) as two:
        one, other = two.routers
        for watcher in await two.watchers():
            await wait_workers(watcher, NUM_WORKERS)
        async with completion_load(*await two.clients(0)) as load:
            (client,) = await two.clients(1, 1)
            await complete(client, 0)
            running = asyncio.create_task(complete(client, 1, max_tokens=500))
            (watcher,) = await two.clients(1, 1)
            await wait_router(watcher, lambda view: view["router"]["inflight"] == 1)
            await other.kill()
            (lost,) = await asyncio.gather(running, return_exceptions=True)
            assert isinstance(lost, httpx.TransportError)
            await load.more(10)
            flags = (f"--registry={two.redis.url}", f"--port={other.port}")
            async with router_process(tmp_path, *flags) as again, again.client() as client:
                async with asyncio.timeout(RECOVERY_S):
                    await wait_router(client, lambda view: not view["router"]["degraded"])
                (survivor,) = await two.clients(0, 1)
                least = NUM_PROMPTS * (PROMPT_TOKENS // BLOCK_SIZE)
                async with asyncio.timeout(TIMEOUT_S):
                    while (known := await cached_blocks(client)) != await cached_blocks(survivor):
                        await asyncio.sleep(0.05)
                assert sum(known.values()) >= least
                for index in range(NUM_PROMPTS):  # whether a cached prompt is used depends on the load
                    await complete(client, index)
                await load.more(10)
        assert sum(load.counts) >= 20 * CLIENTS_EACH
        assert one.child.has_ended is False


@pytest.mark.slow
async def test_unequal_fingerprints_are_never_paired(tmp_path: Path) -> None:
    versions = ("old", "new")
    simulations = [(*WORKERS, f"--fingerprint={version}", f"--worker-prefix={version}-") for version in versions]
    async with two_routers(tmp_path, *simulations, policy="always_remote") as two:
        for watcher in await two.watchers():
            await wait_workers(watcher, 2 * NUM_WORKERS)
        clients = [*await two.clients(0), *await two.clients(1)]
        seen: set[str] = set()
        for start in range(0, 10 * len(clients), len(clients)):
            answers = await asyncio.gather(*(complete(client, start + number) for number, client in enumerate(clients)))
            for answer in answers:
                prefill, decode = (answer.headers[f"x-baton-{role}"].split("-")[0] for role in ("prefill", "decode"))
                assert prefill == decode
                seen.add(prefill)
        assert seen == set(versions)

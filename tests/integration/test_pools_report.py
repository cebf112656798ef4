"""From requests at real routers to the planner's decision, through a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

import baton
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.ray.pool_progress import PoolProgress
from baton.deployment.ray.pools_observer import Observation, PoolsObserver
from baton.membership.registry.router_report import decode_report
from tests.integration.membership.registry_router import registry_router, wait_ready_workers
from tests.integration.simulated_process import simulated
from tests.redis_server import redis_server

MODEL = Path(baton.__file__).parent / "bundled_model"
NUM_REQUESTS, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 60, 240, 6
PREFILL_TOKENS_PER_S = 2000
DEADLINE_S = 120.0
SETTINGS = ScalingSettings(budget_gpus=8, slo=SLO(ttft_s=0.1), upscale_delay_s=0.0)
NOTHING = ByPool(PoolProgress(), PoolProgress())


@asynccontextmanager
async def observer_of(registry: str) -> AsyncIterator[PoolsObserver]:
    """Run an observer; on exit its thread must have ended."""
    observer = PoolsObserver(registry, "bundled_model", SETTINGS, lambda: SETTINGS)
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()
        await asyncio.to_thread(observer._thread.join, DEADLINE_S)
    assert not observer._thread.is_alive()


async def sighting(observer: PoolsObserver, condition: Callable[[Observation], bool]) -> Observation:
    """Wait for the first sighting that meets the condition."""
    async with asyncio.timeout(DEADLINE_S):
        while observer.latest is None or not condition(observer.latest):
            await asyncio.sleep(0.05)
        return observer.latest


def num_requests(seen: Observation) -> int:
    """Return the number of requests that the routers report."""
    return round(seen.pools.traffic.requests_per_s * seen.pools.traffic.window_s)


def num_workers(seen: Observation) -> int:
    """Return the number of workers that some router reaches."""
    return sum(map(len, seen.pools.workers.both()))


def num_timed(seen: Observation) -> int:
    """Return the number of requests that decode workers have served."""
    return sum(sum(each.latency.values()) for each in seen.pools.workers.decode)


async def ask(client: httpx.AsyncClient, number: int) -> None:
    """Request a completion of an uncached prompt."""
    prompt = [300 + (number * 7919 + place) % 3000 for place in range(NUM_PROMPT_TOKENS)]
    body = {"prompt": prompt, "max_tokens": NUM_OUTPUT_TOKENS, "temperature": 0}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text


@pytest.mark.slow
async def test_served_load_becomes_a_decision(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server(tmp_path / "redis"))
        flags = ("--prefill=1", "--decode=2", "--model=bundled_model", f"--registry={server.url}")
        speed = (f"--prefill-tokens-per-s={PREFILL_TOKENS_PER_S}", "--step-s=0.005")
        await stack.enter_async_context(simulated(*flags, *speed))
        routers = [await stack.enter_async_context(registry_router(server.url, MODEL, tmp_path)) for _ in range(2)]
        for router in routers:
            await wait_ready_workers(router, "prefill-0", "decode-0", "decode-1")
        observer = await stack.enter_async_context(observer_of(server.url))
        idle = await sighting(observer, lambda seen: num_workers(seen) == 3)
        assert not idle.pools.snapshot(NOTHING, 0.95, 0.0).has_requests

        await asyncio.gather(*(ask(routers[number % 2], number) for number in range(NUM_REQUESTS)))
        seen = await sighting(observer, lambda seen: num_timed(seen) == NUM_REQUESTS)
        assert num_requests(seen) == NUM_REQUESTS
        snapshot = seen.pools.snapshot(NOTHING, 0.95, 0.0)
        traffic = snapshot.traffic
        assert (traffic.prompt_tokens.mean, traffic.output_tokens.mean) == (NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS)
        assert 0.8 * NUM_PROMPT_TOKENS < traffic.uncached_tokens.mean <= NUM_PROMPT_TOKENS
        assert (snapshot.prefill.pool.num_ready, snapshot.decode.pool.num_ready) == (1, 2)
        assert 0.8 < snapshot.prefill.tokens_per_s / PREFILL_TOKENS_PER_S < 1.2
        assert 0 < snapshot.decode.step_s < 0.1
        assert 0 < sum(each.num_samples for each in snapshot.prefill.pool.latencies) <= NUM_REQUESTS
        decision, _ = plan_pools(snapshot, None, SETTINGS)
        assert (decision.prefill.target > 1, decision.decode.target) == (True, 2), decision.reason

        await server.kill()
        async with asyncio.timeout(DEADLINE_S):
            while not observer.error:
                await asyncio.sleep(0.05)
        last = observer.latest
        for router in routers:
            await ask(router, NUM_REQUESTS)
            assert decode_report((await router.get("/pools")).text).model == "bundled_model"
        assert observer.latest is last
        await server.start()
        await sighting(observer, lambda seen: seen is not last and num_workers(seen) == 3)

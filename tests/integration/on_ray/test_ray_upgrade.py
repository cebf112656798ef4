"""An upgrade as KubeRay does it: a second Ray cluster starts next to the first, which then ends, under load."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.closed_loop import LoadKind, closed_loop
from tests.integration.on_ray.ray_application import MODEL, NAME
from tests.integration.on_ray.ray_cluster import COMMANDS, HOST, RayCluster, ray_cluster
from tests.integration.on_ray.test_ray_autoscaling import ENGINE, PLACES, POOLS
from tests.integration.router_process import RouterProcess, router_process
from tests.integration.workers_view import workers
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

DEADLINE_S = 150.0
# More than one decode worker has room for.
LOAD = LoadKind(num_clients=3 * PLACES, num_prompt_tokens=160, num_output_tokens=400)
RUNNING = Counter(prefill=1, decode=2)
POLICY = {"budget_gpus": 4, "slo": {"ttft_s": 1.0, "tpot_s": 0.5}, "upscale_delay_s": 1.0, "downscale_delay_s": 600.0}


def application(registry: str) -> dict[str, Any]:
    """Return Serve's config of the pools, with their bounds where the chart has them."""
    bounds = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0, "downscale_delay_s": 0}
    args = {
        "registry": registry,
        "model": str(MODEL),
        "served_model_name": NAME,
        "drain_timeout_s": 5,
        "router": False,
        "engine": ENGINE,
        **{f"{name}_ray": {"num_cpus": 1, "num_gpus": 0} for name in POOLS},
    }
    policy = {"registry": registry, "model": NAME, **POLICY}
    return {
        "name": "baton",
        "import_path": "baton.deployment.ray.app:build",
        "args": args,
        "deployments": [{"name": name, "autoscaling_config": bounds} for name in POOLS],
        "autoscaling_policy": {"policy_function": "baton.deployment.ray.scaling:PoolsPolicy", "policy_kwargs": policy},
    }


async def ready_workers(router: RouterProcess, without: Sequence[str] = ()) -> dict[str, str]:
    """Return the roles of the workers that accept requests, by id."""
    seen = await workers(router.url)
    return {
        each["worker_id"]: each["role"]
        for each in seen
        if each["state"] == "ready" and each["worker_id"] not in without
    }


async def wait_sizes(router: RouterProcess, sizes: Counter[str], without: Sequence[str] = ()) -> list[str]:
    """Wait until the pools have these sizes, and return the workers' ids."""
    async with asyncio.timeout(DEADLINE_S):
        while Counter((found := await ready_workers(router, without)).values()) != sizes:
            await asyncio.sleep(0.2)
    return list(found)


async def drain(router: RouterProcess, worker_id: str) -> None:
    """Drain a worker, as an operator does."""
    command = (COMMANDS / "baton", "drain", worker_id, "--force", "--url", router.url, "--timeout-s", "30")
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0


@asynccontextmanager
async def deployed(router: RouterProcess, registry: str) -> AsyncIterator[RayCluster]:
    """Run the application on a Ray cluster of its own."""
    async with ray_cluster() as ray:
        await ray.deploy({"proxy_location": "Disabled", "applications": [application(registry)]})
        try:
            yield ray
        except TimeoutError as error:
            raise AssertionError(f"{await workers(router.url)}\n{ray.logs()}") from error


@pytest.mark.timeout(600)
async def test_a_second_cluster_takes_over_at_the_running_size(tmp_path: Path) -> None:
    flags = ("--host", HOST, "--port", "0", "--model", str(MODEL), "--served-model-name", NAME)
    async with (
        redis_server(tmp_path / "redis") as redis,
        router_process(
            tmp_path, *flags, "--registry", redis.url, "--traffic-window-s", "10", module=("baton", "router")
        ) as router,
        deployed(router, redis.url) as first,
        AsyncExitStack() as later,  # ends after the load
    ):
        await wait_sizes(router, Counter(prefill=1, decode=1))
        async with closed_loop(router.url, LOAD) as load:
            old = await wait_sizes(router, RUNNING)
            await later.enter_async_context(deployed(router, redis.url))
            new = await wait_sizes(router, RUNNING, without=old)
            await asyncio.gather(*(drain(router, each) for each in old))  # as the pods' preStop does
            await first.end()
            await wait_sizes(router, RUNNING)
            await load.served_by(new)
            assert Counter((await ready_workers(router)).values()) == RUNNING

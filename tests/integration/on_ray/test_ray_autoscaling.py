"""Both pools follow the load on a real Ray: our policy sizes them, and Ray's autoscaler starts and ends their nodes.

Each node has room for one worker of its pool. The load does not depend on the speed of the machine: it has more clients
than one worker has slots, or keeps a worker busy all the time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from baton.deployment.local.ports import free_ports
from tests.integration.closed_loop import LoadKind, closed_loop
from tests.integration.on_ray.ray_application import MODEL, NAME, wait_listening
from tests.integration.on_ray.ray_cluster import HOST, left_of
from tests.integration.on_ray.ray_fake_nodes import FakeNodes, fake_nodes
from tests.integration.workers_view import workers
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

DEADLINE_S = 150.0
POOLS = ("prefill", "decode")
MOST = 2  # workers per pool
PLACES = 4  # slots in a decode worker's batch
LONG_OUTPUTS = LoadKind(num_clients=3 * PLACES, num_prompt_tokens=160, num_output_tokens=400)
LONG_PROMPTS = LoadKind(num_clients=8, num_prompt_tokens=3000, num_output_tokens=2)
QUIET = LoadKind(num_clients=1, num_prompt_tokens=160, num_output_tokens=4, pause_s=0.5)
ENGINE = {
    "device": "cpu",
    "dtype": "float32",
    "num_threads": 1,
    "max_num_seqs": PLACES,
    "kv_cache_memory_bytes": "256MiB",
}
POLICY = {
    "budget_gpus": 2 * MOST,
    "slo": {"ttft_s": 1.0, "tpot_s": 3.0},  # a slow machine meets the second one, so only queues and prompts count
    "upscale_delay_s": 1.0,
    "downscale_delay_s": 5.0,
    "shift_delay_s": 5.0,
    "turn_s": 10.0,
    "start_s": 5.0,
    "warmup_s": 5.0,
}


@dataclass(frozen=True, slots=True)
class Pools:
    """The application's pools: their workers and nodes."""

    nodes: FakeNodes
    url: str  # the router's

    async def become(self, sizes: Counter[str], most: Counter[str]) -> list[str]:
        """Wait until the pools have these sizes, with one worker per node, and return the workers' ids; meanwhile no
        pool may exceed `most`.
        """
        async with asyncio.timeout(DEADLINE_S):
            while True:
                seen = [each for each in await workers(self.url) if each["state"] == "ready"]
                ready, nodes = Counter(each["role"] for each in seen), await asyncio.to_thread(self.nodes.types)
                assert ready <= most, f"workers: {ready}"
                assert nodes <= most, f"nodes: {nodes}"
                if ready == nodes == sizes:
                    break
                await asyncio.sleep(0.3)
        assert all(self.nodes.type_of(each["worker_id"]) == each["role"] for each in seen)
        return [each["worker_id"] for each in seen]

    async def flip(self, roles: Counter[str], nodes: Counter[str]) -> list[str]:
        """Wait until as many workers have each role, on these nodes; return those that have changed their role."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                seen = [each for each in await workers(self.url) if each["state"] == "ready"]
                assert await asyncio.to_thread(self.nodes.types) == nodes
                if Counter(each["role"] for each in seen) == roles:
                    return [each["worker_id"] for each in seen if not each["worker_id"].startswith(each["role"])]
                await asyncio.sleep(0.3)


def sizes(prefill: int, decode: int) -> Counter[str]:
    return Counter(prefill=prefill, decode=decode)


@asynccontextmanager
async def pools_of(
    nodes: FakeNodes, registry: str, idle_s: float | None = None, **policy: float
) -> AsyncIterator[Pools]:
    """Run an application and wait until its router listens. `idle_s`: without requests, until no worker is left."""
    [port] = free_ports(HOST, 1)
    bounds = {"min_replicas": 1 if idle_s is None else 0, "max_replicas": MOST}
    place: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1, "autoscaling": bounds}
    router: dict[str, Any] = {"local_prefill_below": 64, "traffic_window_s": 10}
    if idle_s is not None:
        router["cold_start_timeout_s"] = DEADLINE_S
    args: dict[str, Any] = {
        "registry": registry,
        "model": str(MODEL),
        "served_model_name": NAME,
        "host": HOST,
        "port": port,
        "drain_timeout_s": 1,
        "engine": ENGINE,
        "router": router,
        **{f"{pool}_ray": {**place, "label_selector": {"pool": pool}} for pool in POOLS},
    }
    application = {
        "name": "baton",
        "import_path": "baton.deployment.ray.app:build",
        "args": args,
        "autoscaling_policy": {
            "policy_function": "baton.deployment.ray.scaling:PoolsPolicy",
            "policy_kwargs": {"registry": registry, **POLICY, "idle_s": idle_s, **policy},
        },
    }
    await nodes.ray.deploy({"proxy_location": "Disabled", "applications": [application]})
    pools = Pools(nodes, f"http://{HOST}:{port}")
    try:
        await wait_listening(pools.url)
        yield pools
    except TimeoutError as error:
        raise AssertionError(nodes.ray.logs()) from error


@pytest.mark.timeout(600)  # four waits of a minute each on idle cores, twice as long on busy ones
async def test_pools_and_nodes_follow_the_load(tmp_path: Path) -> None:
    async with redis_server(tmp_path / "redis") as redis, fake_nodes(POOLS, MOST) as nodes:
        assert not nodes.types()
        async with pools_of(nodes, redis.url) as pools:
            await pools.become(sizes(1, 1), most=sizes(1, 1))
            async with closed_loop(pools.url, LONG_OUTPUTS) as load:
                both = await pools.become(sizes(1, 2), most=sizes(1, 2))
                await load.served_by(both)
            async with closed_loop(pools.url, LONG_PROMPTS) as load:
                both = await pools.become(sizes(2, 1), most=sizes(2, 2))
                await load.served_by(both)
            async with closed_loop(pools.url, QUIET):
                await pools.become(sizes(1, 1), most=sizes(2, 1))
        processes = nodes.ray.processes()
    assert left_of(processes, 0.0) == []


@pytest.mark.timeout(600)
async def test_workers_change_their_role_instead_of_being_started(tmp_path: Path) -> None:
    """The third GPU's worker follows the load from pool to pool, in the same process."""
    async with (
        redis_server(tmp_path / "redis") as redis,
        fake_nodes(POOLS, MOST) as nodes,
        pools_of(nodes, redis.url, budget_gpus=3, flip_s=0.5, drain_s=1.0) as pools,
    ):
        async with closed_loop(pools.url, LONG_PROMPTS):
            started = set(await pools.become(sizes(2, 1), most=sizes(2, 1)))
        async with closed_loop(pools.url, LONG_OUTPUTS) as load:
            [changed] = await pools.flip(sizes(1, 2), nodes=sizes(2, 1))
            await load.served_by([changed])
        async with closed_loop(pools.url, LONG_PROMPTS):
            assert await pools.flip(sizes(2, 1), nodes=sizes(2, 1)) == []
        assert {each["worker_id"] for each in await workers(pools.url)} == started


@pytest.mark.timeout(600)
async def test_the_first_request_after_a_scale_to_zero_waits_for_its_workers(tmp_path: Path) -> None:
    async with redis_server(tmp_path / "redis") as redis, fake_nodes(POOLS, MOST) as nodes:
        async with pools_of(nodes, redis.url, idle_s=12.0) as pools:
            assert not nodes.types()
            for _ in range(2):
                await pools.become(sizes(0, 0), most=sizes(1, 1))
                async with closed_loop(pools.url, QUIET) as load:
                    both = await pools.become(sizes(1, 1), most=sizes(1, 1))
                    await load.served_by([each for each in both if each.startswith("decode")])
        processes = nodes.ray.processes()
    assert left_of(processes, 0.0) == []

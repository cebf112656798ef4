"""Workers over two nodes of a real Ray: a replica has a rank on each, and is replaced as a whole."""

import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.completion_load import completion_load
from tests.integration.handover.test_expert_parallel import completions
from tests.integration.on_ray.ray_application import RayApplication, ray_application
from tests.integration.on_ray.ray_cluster import command_line, ray_cluster
from tests.integration.on_ray.ray_fake_nodes import fake_nodes
from tests.integration.workers_view import workers
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

NODES = ("127.0.0.2", "127.0.0.3")
ARGUMENTS = {
    "tensor_parallel": 2,
    "decode_ray": {"nodes_per_worker": 2, "label_selector": {"pool": "decode"}},
    "prefill_ray": {"label_selector": {"pool": "decode"}},
    "router": {"local_prefill_below": 0},
}


def ranks(app: RayApplication, worker_id: str) -> list[psutil.Process]:
    """Return the process of a worker's second rank."""
    name = f"--worker-id={worker_id}-node-1-rank-1"
    return [each for each in app.ray.processes() if name in command_line(each)]


async def test_a_replica_over_two_nodes_serves_and_is_replaced_as_a_whole(tmp_path: Path, cluster_url: str) -> None:
    expected = await completions(cluster_url)
    async with (
        redis_server(tmp_path) as registry,
        ray_cluster(NODES[0], {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}) as ray,
    ):
        for host in NODES:
            await ray.join(host, "--labels=pool=decode")
        async with (
            ray_application(ray, registry.url, **ARGUMENTS) as app,
            httpx.AsyncClient(base_url=app.router_url, timeout=60, trust_env=False, verify=False) as client,
        ):
            assert await completions(app.router_url) == expected
            reported = await workers(app.router_url)
            assert sum(int(each["load"]["handovers"]) for each in reported if each["role"] == "decode") > 0
            [first, second] = sorted(await app.wait_workers("decode", 2))
            hosts = {
                next(word for word in command_line(each) if word.startswith("--host="))
                for each in (ray.worker(first), *ranks(app, first))
            }
            assert hosts == {f"--host={host}" for host in NODES}
            async with completion_load(*[client] * 3) as load:
                await load.more(2)
                [killed] = ranks(app, first)
                os.kill(killed.pid, signal.SIGKILL)
                await load.more(2)  # with the remaining worker
                await app.wait_workers("decode", 2, frozenset({first}))
                assert ray.worker(second).is_running()
                await load.more(3)
            assert not ranks(app, first)


async def test_rays_autoscaler_starts_a_node_for_each_bundle(tmp_path: Path) -> None:
    decode = {"nodes_per_worker": 2, "num_cpus": 1, "num_gpus": 1, "label_selector": {"pool": "decode"}}
    on_cpus = {"engine": {"device": "cpu", "dtype": "float32", "kv_cache_memory_bytes": "64MiB", "num_threads": 1}}
    async with redis_server(tmp_path) as registry, fake_nodes(["decode"], most=4) as nodes:
        assert nodes.types() == Counter()
        arguments = {**on_cpus, "tensor_parallel": 2, "decode_ray": decode}
        async with ray_application(nodes.ray, registry.url, **arguments) as app:
            assert len(await app.wait_workers("decode", 2)) == 2
            assert nodes.types() == Counter(decode=4)  # one GPU on each

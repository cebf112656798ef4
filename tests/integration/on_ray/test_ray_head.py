"""Loss and restart of Ray's head: replicas on other nodes continue to serve, and are supervised again."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.completion_load import completion_load
from tests.integration.on_ray.ray_application import NAME, ray_application, wait_listening
from tests.integration.on_ray.ray_cluster import RayCluster, ray_cluster
from tests.integration.router_process import router_process, wait_workers
from tests.redis_server import HOST, redis_server

pytestmark = pytest.mark.slow

HEAD, NODE = "127.0.0.2", "127.0.0.3"
ON_NODE = {  # by every option that Ray has
    "prefill_ray": {"resources": {"rdma": 1}},
    "decode_ray": {"label_selector": {"pool": "decode"}},
    "router_ray": {"label_selector": {"pool": "in(decode,router)"}},
}


@asynccontextmanager
async def lasting_ray(directory: Path) -> AsyncIterator[RayCluster]:
    """Run a Ray of a head and a node with the replicas; the head's state is in Redis."""
    async with redis_server(directory) as redis:
        env = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # permits nodes to join
            "RAY_REDIS_ADDRESS": f"{HOST}:{redis.port}",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        }
        async with ray_cluster(HEAD, env) as ray:
            await ray.join(NODE, "--labels=pool=decode", '--resources={"rdma": 4}')
            yield ray


async def test_requests_survive_the_loss_of_rays_head(tmp_path: Path) -> None:
    async with (
        redis_server(tmp_path / "registry") as registry,
        lasting_ray(tmp_path / "gcs") as ray,
        ray_application(ray, registry.url, **ON_NODE) as app,
        httpx.AsyncClient(base_url=app.router_url, timeout=60, trust_env=False, verify=False) as inside,
        router_process(tmp_path, "--port=0", f"--registry={registry.url}", f"--served-model-name={NAME}") as router,
        router.client() as outside,
    ):
        prefill = await app.wait_workers("prefill", 1)
        decode = await app.wait_workers("decode", 2)
        await wait_workers(outside, 3)
        before = {worker_id: ray.worker(worker_id) for worker_id in prefill | decode}
        [first, second] = sorted(decode)
        async with completion_load(inside, outside) as load:
            await load.more(2)
            await ray.head.kill()
            await load.more(2)
            os.kill(before[first].pid, signal.SIGKILL)  # Ray cannot replace it without a head
            await load.more(10)
            await ray.restart_head()
            replaced = await app.wait_workers("decode", 2, frozenset({first}))
            assert second in replaced
            assert await app.wait_workers("prefill", 1) == prefill
            assert {each: ray.worker(each) for each in (second, *prefill)} == kept(before, first)
            await wait_listening(app.serve_url)

            os.kill(before[second].pid, signal.SIGKILL)
            await app.wait_workers("decode", 2, decode)
            await load.more(2)


def kept(before: dict[str, psutil.Process], killed: str) -> dict[str, psutil.Process]:
    """Return the workers without the killed one."""
    return {worker_id: process for worker_id, process in before.items() if worker_id != killed}

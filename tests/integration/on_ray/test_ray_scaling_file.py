"""Changes of the policy's settings and the pools' bounds on a real Ray restart no replica."""

from pathlib import Path
from typing import Any

import pytest

from baton.deployment.local.ports import free_ports
from tests.integration.on_ray.ray_application import MODEL, NAME, RayApplication, wait_listening
from tests.integration.on_ray.ray_cluster import HOST, ray_cluster
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

BOUNDS = {"max_replicas": 2, "upscale_delay_s": 0, "downscale_delay_s": 0}
PATIENT = {"upscale_delay_s": 1000, "start_timeout_s": 600}  # so that only the settings, not the load, grow a pool


def config(registry: str, port: int, file: Path, least_prefill: int) -> dict[str, Any]:
    """Return Serve's config for both pools and a router."""
    place = {"num_cpus": 0.1}
    args: dict[str, Any] = {
        "registry": registry,
        "model": str(MODEL),
        "served_model_name": NAME,
        "host": HOST,
        "port": port,
        "drain_timeout_s": 1,
        "lease_s": 2,
        "engine": {"dtype": "float32", "kv_cache_memory_bytes": "64MiB", "num_threads": 1},
        **{f"{name}_ray": place for name in ("prefill", "decode", "router")},
    }
    application = {
        "name": "baton",
        "route_prefix": None,
        "import_path": "baton.deployment.ray.app:build",
        "args": args,
        "deployments": [
            {"name": name, "autoscaling_config": {"min_replicas": least, **BOUNDS}}
            for name, least in (("prefill", least_prefill), ("decode", 1))
        ],
        "autoscaling_policy": {
            "policy_function": "baton.deployment.ray.scaling:PoolsPolicy",
            "policy_kwargs": {"registry": registry, "settings_file": str(file), **PATIENT},
        },
    }
    return {"proxy_location": "Disabled", "applications": [application]}


@pytest.mark.timeout(400)
async def test_changed_settings_reach_the_planner_without_restarts(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("budget_gpus: 4")
    [port] = free_ports(HOST, 1)
    async with redis_server(tmp_path / "redis") as redis, ray_cluster() as ray:
        before = config(redis.url, port, file, least_prefill=1)
        await ray.deploy(before)
        app = RayApplication(ray, before, "", f"http://{HOST}:{port}")
        try:
            await wait_listening(app.router_url)
            prefill, decode = await app.wait_workers("prefill", 1), await app.wait_workers("decode", 1)
            pids = {name: ray.worker(name).pid for name in prefill | decode}

            file.write_text("{budget_gpus: 4, decode: {min_replicas: 2}}")
            decodes = await app.wait_workers("decode", 2)
            assert decode < decodes

            await ray.deploy(config(redis.url, port, file, least_prefill=2))
            prefills = await app.wait_workers("prefill", 2)
            assert prefill < prefills
            assert await app.wait_workers("decode", 2) == decodes  # a redeploy keeps the planner's sizes
            assert {name: ray.worker(name).pid for name in prefill | decode} == pids
        except TimeoutError as error:
            raise AssertionError(ray.logs()) from error

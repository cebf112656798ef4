"""Size at which a new cluster's pools begin."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.running_size import running_sizes
from baton.membership.registry.factory import open_registry
from baton.membership.registry.router_report import encode_report
from tests.redis_server import redis_server
from tests.unit.deployment.ray.test_ray_scaling import of_application, pools
from tests.unit.membership.registry.registry_members import reporting

pytest.importorskip("ray.serve")

from baton.deployment.ray import app

DEADLINE_S = 20.0
CLUSTER = "ray-0"
POOLS = {f"{name}_ray": {"autoscaling": {"min_replicas": 1, "max_replicas": 3}} for name in ("prefill", "decode")}


async def test_the_workers_of_other_clusters_that_accept_requests_count(tmp_path: Path) -> None:
    running = of_application(pools(num_prefill=2, num_decode=3), "ray-1-a")
    leaving = of_application(pools(num_prefill=4), "ray-2-a", draining=True)
    own = of_application(pools(num_decode=5), f"{CLUSTER}-a")
    report = replace(running, workers=(*running.workers, *leaving.workers, *own.workers))
    other = replace(of_application(pools(num_prefill=7), "ray-1-b"), router_id="router-2", model="other")
    async with redis_server(tmp_path) as server:
        registry = open_registry(server.url)
        async with (
            reporting(registry, "router-1", lambda: encode_report(report)),
            reporting(registry, "router-2", lambda: encode_report(other)),
        ):
            async with asyncio.timeout(DEADLINE_S):
                while len(await registry.reports.read()) < 2:
                    await asyncio.sleep(0.01)
            assert running_sizes(server.url, report.model, CLUSTER) == {"prefill": 2, "decode": 3}
        await registry.close()


def test_without_a_registry_pools_begin_at_their_smallest() -> None:
    assert running_sizes("redis://127.0.0.1:1/0", "m", CLUSTER) == {}


@pytest.mark.parametrize(
    ("running", "expected"), [({}, (None, None)), ({"prefill": 1, "decode": 2}, (None, 2)), ({"decode": 9}, (None, 3))]
)
def test_the_bounds_limit_the_size_at_the_start(
    monkeypatch: pytest.MonkeyPatch, running: dict[str, int], expected: tuple[int | None, int | None]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(app, "cluster_name", lambda: CLUSTER)
    monkeypatch.setattr(app, "running_sizes", lambda *args: asked.append(args) or running)
    arguments: dict[str, Any] = {"model": "/models/m", "registry": "redis://cache", **POOLS, "router": False}
    built = app.build({**arguments, "engine": {"device": "cpu"}})
    assert asked == [("redis://cache", "m", CLUSTER)]
    found = {}
    node: Any = built
    while node is not None:
        bound = node._bound_deployment
        found[bound.name] = bound._deployment_config.autoscaling_config.initial_replicas
        node = next((each for each in bound.init_args if hasattr(each, "_bound_deployment")), None)
    assert (found["prefill"], found["decode"]) == expected


def test_an_application_may_begin_at_its_smallest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "cluster_name", lambda: CLUSTER)
    monkeypatch.setattr(app, "running_sizes", lambda *_: pytest.fail("the running size was read"))
    arguments: dict[str, Any] = {"model": "/models/m", "registry": "redis://cache", **POOLS, "router": False}
    app.build({**arguments, "engine": {"device": "cpu"}, "begin_at_running_size": False})
    assert read_ray_settings({**arguments, "engine": {"device": "cpu"}}, {}).shared.begin_at_running_size

"""Failures to start a worker's other nodes, which end the start of its replica."""

from typing import Any

import pytest

from baton.deployment.ray.nodes import OtherNodes
from tests.unit.deployment.ray.test_ray_settings import settings


def other_nodes() -> OtherNodes:
    read = settings(
        tensor_parallel=2, decode_kv_cache_memory_bytes="64MiB", decode_ray={"nodes_per_worker": 2, "num_cpus": 1}
    )
    return OtherNodes(read, "decode", "d")


async def test_a_failed_start_loses_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.deployment.ray.nodes.get_current_placement_group", lambda: None)
    nodes = other_nodes()
    nodes.start("10.0.0.1:31000")
    reason = nodes.lost.result()
    assert reason == (
        "the other nodes cannot start: AssertionError: Serve places replicas on several nodes by a placement group"
    )
    nodes.end()


async def test_an_actor_that_fails_loses_its_node() -> None:
    class Run:
        async def remote(self, *_: object) -> str:
            raise ValueError("no such place")

    class Actor:
        run = Run()

    nodes = other_nodes()
    actor: Any = Actor()
    for number in (1, 2):  # the first loss counts
        await nodes._run(actor, number, "10.0.0.1:31000")
    assert nodes.lost.result() == "node 1: ValueError: no such place"

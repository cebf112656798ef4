"""Options of deployments on Ray that are refused."""

from typing import Any

import pytest

from baton.settings.values import OptionError
from tests.unit.deployment.ray.test_ray_settings import settings

GPUS = {"engine": {"device": "cuda:1"}}
ANY_GPU = {"engine": {"device": "cuda"}}
SCALED = {"min_replicas": 1, "max_replicas": 4}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"decode_ray": {"autoscaling": {**SCALED, "initial_replicas": 2}}},
            "decode_ray.autoscaling.initial_replicas: Serve would return to it at every change",
        ),
        (
            {"prefill_ray": {"autoscaling": {**SCALED, "initial_replicas": 1}}},
            "prefill_ray.autoscaling.initial_replicas: Serve would return to it at every change",
        ),
        (
            {"colocated_ray": {"autoscaling": SCALED}},
            "colocated_ray.autoscaling: colocated workers are not autoscaled; set colocated_ray",
        ),
        (
            {"prefill": 2, "colocated": 1},
            "prefill: no worker would decode what these prefill, because colocated workers prefill for themselves",
        ),
        (
            {"prefill_ray": {"autoscaling": SCALED}, "colocated": 1},
            "prefill: no worker would decode what these prefill",
        ),
        (
            {"drain_timeout_s": 60, "decode_ray": {"graceful_shutdown_timeout_s": 96}},
            "decode_ray.graceful_shutdown_timeout_s: 96 s is too short for a replica to drain; set 97 or more, or drain"
            "_timeout_s to less than 60",
        ),
        (
            {"drain_timeout_s": 60, "router_ray": {"graceful_shutdown_timeout_s": 64}},
            "router_ray.graceful_shutdown_timeout_s: 64 s is too short for a replica to drain; set 65 or more",
        ),
        (
            {"decode": 1, "expert_parallel": 2},
            "decode: 1, but the group of the decode workers needs 2 (expert_pa",
        ),
        ({"decode_ray": {"num_replicas": 3}, "expert_parallel": 4}, "decode_ray.num_replicas: 3, but the group of"),
        (
            {"decode_ray": {"autoscaling": SCALED}, "expert_parallel": 2},
            "decode_ray.autoscaling.min_replicas: 1, but the group of the decode workers needs 2 (expert_parallel"
            "); set 2 or more",
        ),
        (
            {"prefill": 2, "prefill_expert_parallel": 3},
            "prefill: 2, but the group of the prefill workers needs 3 (prefill_expert_parallel); set 3 or more",
        ),
        (
            {"prefill": 0, "colocated": 1, "expert_parallel": 2},
            "colocated: 1, but the group of the both workers",
        ),
        ({"rendezvous_ray": {"num_replicas": 2}}, "rendezvous_ray: a pool with expert_parallel has exactly one"),
        ({"rendezvous_ray": {"autoscaling": SCALED}}, "rendezvous_ray: a pool with expert_parallel has exactly one"),
        (GPUS, "device: cuda:1 for prefill, but a replica sees only the 1 that Ray assigns to it"),
        ({"prefill": 0, "decode_engine": {"device": "cuda:1"}}, "device: cuda:1 for decode"),
        ({**GPUS, "prefill_ray": {"num_gpus": 2}}, "device: cuda:1 for decode"),
        (
            {**ANY_GPU, "tensor_parallel": 4, "decode_ray": {"num_gpus": 3}},
            "decode_ray.num_gpus: 3, but a worker has 4 ranks (tensor_parallel), each with a GPU",
        ),
        (
            {**ANY_GPU, "prefill_tensor_parallel": 2, "prefill_ray": {"num_gpus": 1}},
            "prefill_ray.num_gpus: 1, but a worker has 2 ranks (prefill_tensor_parallel), each with a GPU",
        ),
        (
            {**ANY_GPU, "tensor_parallel": 16, "decode_ray": {"num_gpus": 4, "nodes_per_worker": 2}},
            "decode_ray.num_gpus: 4, but a worker has 8 ranks (tensor_parallel) on each of 2 nodes, each with a GPU",
        ),
        (
            {"prefill_tensor_parallel": 3, "prefill_ray": {"nodes_per_worker": 2}},
            "prefill_ray.nodes_per_worker: 2 nodes cannot have equal shares of 3 ranks; set prefill_tensor_parallel to",
        ),
        (
            {"tensor_parallel": 2, "decode_ray": {"nodes_per_worker": 2, "max_replicas_per_node": 1}},
            "decode_ray.max_replicas_per_node: Ray has no such limit for replicas on several nodes",
        ),
        (
            {"tensor_parallel": 2, "decode_ray": {"nodes_per_worker": 2}},
            "kv_cache_memory_bytes: missing; nodes without GPUs have no common default, so with decode_ray.nodes_",
        ),
        ({"router_ray": {"nodes_per_worker": 2}}, "router_ray.nodes_per_worker: only workers have ranks; remove it"),
        (
            {**ANY_GPU, "tensor_parallel": 2, "decode_ray": {"num_gpus": 0.5}},
            "decode_ray.num_gpus: 0.5, but a worker has 2 ranks",
        ),
        (
            {
                **ANY_GPU,
                "prefill": 0,
                "colocated": 1,
                "decode": 0,
                "tensor_parallel": 2,
                "colocated_ray": {"num_gpus": 1},
            },
            "colocated_ray.num_gpus: 1, but a worker has 2 ranks (tensor_parallel)",
        ),
        (  # the second rank would use cuda:2
            {"decode_engine": {"device": "cuda:1"}, "tensor_parallel": 2},
            "device: cuda:1 for decode, but a replica sees only the 2 that Ray assigns to it",
        ),
    ],
)
def test_options_that_ray_would_silently_ignore_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as raised:
        settings(**arguments)
    assert expected in str(raised.value)


def test_options_that_ray_follows_are_accepted() -> None:
    assert settings(expert_parallel=2).num_replicas("decode") == 2
    scaled_group = {"decode_ray": {"autoscaling": {"min_replicas": 2, "max_replicas": 5}}, "expert_parallel": 2}
    assert settings(**scaled_group).num_replicas("decode") == 2
    ends = {"prefill_ray": 97, "decode_ray": 97, "router_ray": 65, "colocated_ray": 1}  # no worker is colocated here
    sections = {name: {"graceful_shutdown_timeout_s": end_s} for name, end_s in ends.items()}
    read = settings(drain_timeout_s=60, **sections)
    assert [read.shutdown_timeout_s(name) for name in ("prefill", "decode", "router")] == [97, 97, 65]
    assert settings(engine={"device": "cuda:0"}).num_gpus("decode") == 1
    two = {"num_gpus": 2}
    assert settings(**GPUS, prefill_ray=two, decode_ray=two).num_gpus("decode") == 2
    assert settings(**ANY_GPU, decode_ray={"num_gpus": 0.5}).num_gpus("decode") == 0.5
    assert settings(tensor_parallel=4, decode_ray={"num_gpus": 0}).num_gpus("decode") == 0  # ranks on CPUs
    offset = settings(tensor_parallel=2, decode_engine={"device": "cuda:1"}, decode_ray={"num_gpus": 3})
    assert offset.num_gpus("decode") == 3
    scaled = settings(router_ray={"autoscaling": {**SCALED, "initial_replicas": 2}})
    assert scaled.num_replicas("router") == 2  # Serve sees its requests, and sizes it by them

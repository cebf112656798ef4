"""Pools whose workers are several ranks, each with a GPU of the same pod."""

from typing import Any

import pytest

from tests.helm import charts
from tests.helm.application import ray_cluster, settings_of, without_replicas
from tests.helm.cases import CASES

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

from ray.serve import Application

from baton.deployment.ray.app import build

RANKS = {"prefill": 2, "decode": 3}
PER_POD = {"prefill": 1, "decode": 2}


def deployments(application: Application) -> dict[str, Any]:
    """What an application deploys, by name: what it is bound to as well."""
    deployment = application._bound_deployment
    found = {deployment.name: deployment}
    for each in deployment.init_args:
        if isinstance(each, Application):
            found |= deployments(each)
    return found


def test_the_applications_ranks_follow_the_values() -> None:
    settings = settings_of(charts.render(CASES["ranks"]))
    settings.check()
    cluster = settings.cluster.cluster
    assert (cluster.num_tensor_ranks("prefill"), cluster.num_tensor_ranks("decode")) == (2, 3)
    assert cluster.kv_shards == 6  # the same for the workers of both pools
    assert (settings.num_replicas("prefill"), settings.num_replicas("decode")) == (1, 1)
    assert not settings.has_rendezvous
    alone = settings_of(charts.render(charts.MODEL)).cluster.cluster
    assert (alone.num_tensor_ranks("prefill"), alone.num_tensor_ranks("decode"), alone.kv_shards) == (1, 1, 1)


def test_a_replica_on_ray_has_as_many_gpus_as_ranks() -> None:
    [application] = charts.serve_config(charts.render(CASES["ranks"]))["applications"]
    found = deployments(build(application["args"]))
    assert {name: each.ray_actor_options["num_gpus"] for name, each in found.items()} == RANKS


def test_the_memory_that_ray_reserves_fits_the_pod() -> None:
    """Ray's node has the memory of its container."""
    objects = charts.render(CASES["ranks"])
    [application] = charts.serve_config(objects)["applications"]
    reserved = {
        name: each.ray_actor_options["memory"] for name, each in deployments(build(application["args"])).items()
    }
    assert reserved == dict.fromkeys(RANKS, charts.chart().values["decode"]["memoryGi"] << 30)
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        limit = group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
        assert limit.endswith("Mi")
        assert reserved[group["groupName"]] * PER_POD[group["groupName"]] < int(limit[:-2]) << 20


def test_a_pods_gpus_are_those_of_its_workers_ranks() -> None:
    objects = charts.render(CASES["ranks"])
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        name = group["groupName"]
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == RANKS[name] * PER_POD[name]
        assert group["resources"]["GPU"] == str(RANKS[name] * PER_POD[name])


def test_the_planner_counts_the_gpus_of_ranks() -> None:
    settings = charts.scaling_settings(charts.render(CASES["ranks"]))
    assert {name: settings[name]["gpus_per_replica"] for name in RANKS} == RANKS
    assert settings["budget_gpus"] == 4 * 2 + 6 * 3
    budget = {"autoscaling": {"clusterBudget": {"enabled": True}}}
    objects = charts.render(charts.merged(CASES["ranks"], budget))
    told = charts.serve_config(objects)["applications"][0]["autoscaling_policy"]["policy_kwargs"]["kubernetes"]
    assert {name: told[name]["gpus_per_pod"] for name in RANKS} == {"prefill": 2, "decode": 6}


def test_ranks_without_gpus_take_none() -> None:
    objects = charts.render(charts.merged(CASES["ranks"], {"device": "cpu"}))
    settings = settings_of(objects)
    settings.check()
    assert settings.cluster.cluster.num_tensor_ranks("decode") == 3
    assert (settings.num_gpus("prefill"), settings.num_gpus("decode")) == (0, 0)
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        assert "nvidia.com/gpu" not in group["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_expert_ranks_equal_to_tensor_ranks_form_no_group_of_workers() -> None:
    both = {"decode": {"tensorParallelSize": 2, "expertParallelSize": 2}}
    objects = charts.render(charts.merged(charts.MODEL, both))
    settings = settings_of(objects)
    settings.check()
    cluster = settings.cluster.cluster
    assert (cluster.num_tensor_ranks("decode"), cluster.num_expert_ranks("decode")) == (2, 2)
    assert (settings.group_size("decode"), settings.num_replicas("decode")) == (1, 1)
    assert not settings.has_rendezvous
    assert settings.num_gpus("decode") == 2


@pytest.mark.parametrize("pool", RANKS)
def test_workers_with_more_gpus_build_a_second_cluster(pool: str) -> None:
    """Serve cannot change what a pod has."""
    before, after = (
        charts.render(charts.merged(CASES["ranks"], each)) for each in ({}, {pool: {"tensorParallelSize": 4}})
    )
    assert without_replicas(before) != without_replicas(after)


def test_a_worker_over_several_nodes_takes_a_pod_on_each() -> None:
    over_nodes = {"decode": {"tensorParallelSize": 16, "nodesPerWorker": 2, "minReplicas": 2, "maxReplicas": 3}}
    budget = {"autoscaling": {"clusterBudget": {"enabled": True}}}
    objects = charts.render(charts.merged(charts.MODEL, over_nodes, budget))
    settings_of(objects).check()
    [application] = charts.serve_config(objects)["applications"]
    decode = deployments(build(application["args"]))["decode"]
    memory = charts.chart().values["decode"]["memoryGi"] << 30
    bundle = {"CPU": 8.0, "GPU": 8.0, "memory": memory}
    config = decode._replica_config
    assert config.placement_group_bundles == [bundle] * 2
    assert config.placement_group_strategy == "STRICT_SPREAD"
    assert config.placement_group_bundle_label_selector == [{"pool": "decode"}] * 2
    assert decode.ray_actor_options["num_gpus"] == 8
    [group] = [each for each in ray_cluster(objects)["spec"]["workerGroupSpecs"] if each["groupName"] == "decode"]
    assert group["resources"]["GPU"] == "8"
    assert (group["replicas"], group["minReplicas"]) == (4, 0)
    settings = charts.scaling_settings(objects)
    assert settings["decode"]["gpus_per_replica"] == 16
    assert settings["budget_gpus"] == 4 + 3 * 16
    kubernetes = application["autoscaling_policy"]["policy_kwargs"]["kubernetes"]
    assert kubernetes["decode"]["gpus_per_pod"] == 8
    [disruptions] = [
        each["spec"]["minAvailable"]
        for each in objects
        if each["kind"] == "PodDisruptionBudget" and each["metadata"]["name"].endswith("-decode")
    ]
    assert disruptions == 3

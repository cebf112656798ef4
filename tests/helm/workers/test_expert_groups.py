"""Pools whose workers share the model's experts."""

from typing import Any

import pytest

from baton.deployment.ray.settings import RENDEZVOUS, ROLES
from tests.helm import charts
from tests.helm.application import ray_cluster, settings_of, without_replicas
from tests.helm.cases import CASES

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr


def test_a_pools_group_follows_the_values() -> None:
    objects = charts.render(CASES["experts"])
    settings = settings_of(objects)
    settings.check()
    assert settings.has_rendezvous
    assert [settings.group_size(role) for role in ROLES] == [2, 3, 3]
    told = {
        "enable_eplb": True,
        "num_redundant_experts": 2,
        "eplb_step_interval": 500,
        "eplb_num_nodes": 2,
        "min_expert_ranks": 2,
    }
    assert told.items() <= settings.cluster.worker.items()
    [application] = charts.serve_config(objects)["applications"]
    for deployment, least in zip(application["deployments"], (2, 4), strict=True):
        assert deployment["autoscaling_config"]["min_replicas"] == least >= settings.group_size(deployment["name"])
    alone = settings_of(charts.render(charts.MODEL))
    assert not alone.has_rendezvous
    assert "enable_eplb" not in alone.cluster.worker


def test_the_rendezvous_fits_into_the_decode_pool_without_taking_its_resources() -> None:
    objects = charts.render(CASES["experts"])
    settings = settings_of(objects)
    options = settings.deployments[RENDEZVOUS]
    assert (options.replicas.num_cpus, settings.num_gpus(RENDEZVOUS)) == (0, 0)
    types = _derive_autoscaling_config_from_ray_cr(ray_cluster(objects))["available_node_types"]
    fitting = [name for name, node in types.items() if options.label_selector.items() <= node["labels"].items()]
    assert fitting == ["decode"]


def test_pods_of_a_group_reach_each_other_at_any_port() -> None:
    """Where ranks wake each other, gloo's and NCCL's connections, and the rendezvous: all listen at any free port."""
    policy = charts.only(charts.render(CASES["experts"]), "NetworkPolicy", "baton-workers")["spec"]
    pools = {"prefill", "decode"}
    for rules, key in ((policy["ingress"], "from"), (policy["egress"], "to")):
        open_to = [
            set(peer["podSelector"]["matchExpressions"][0]["values"])
            for rule in rules
            if "ports" not in rule
            for peer in rule[key]
        ]
        assert any(pools <= peers for peers in open_to)


GROUP_CHANGES: list[dict[str, Any]] = [
    {"decode": {"expertParallelSize": 2}},
    {"engine": {"dtype": "float32"}},
    {"decode": {"engine": {"blockSize": 32}}},
    {"eplb": {"stepInterval": 100}},
    {"eplb": {"numNodes": 4}},
    {"minExpertRanks": 1},
    {"eplb": {"enabled": False}},
]


@pytest.mark.parametrize("change", GROUP_CHANGES)
def test_a_change_of_the_group_builds_a_second_cluster(change: dict[str, Any]) -> None:
    """Serve would change it worker by worker, and the group takes none that differs."""
    before, after = (charts.render(charts.merged(CASES["experts"], each)) for each in ({}, change))
    assert without_replicas(before) != without_replicas(after)
    bounds = {"decode": {"minReplicas": 5, "maxReplicas": 12}}
    assert without_replicas(before) == without_replicas(charts.render(charts.merged(CASES["experts"], bounds)))

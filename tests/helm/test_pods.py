"""What pods get: probes and ends, devices and memory, and where they are placed."""

from typing import Any

import pytest

from tests.helm import charts
from tests.helm.cases import CASES
from tests.helm.label_selectors import selects
from tests.helm.pods import POOLS, main_container, rendered, worker


def test_a_slow_start_is_not_killed() -> None:
    """A worker's pod lives with its Ray node: Serve waits for the model, as long as the values say."""
    objects = rendered({"decode": {"startTimeoutSeconds": 7200}})
    for name in ("head", *POOLS):
        container = main_container(worker(objects, name))
        probes = [container[each] for each in ("startupProbe", "readinessProbe", "livenessProbe")]
        assert all(each["httpGet"] == {"path": "/api/healthz", "port": 52365} for each in probes)
        assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] >= 300
        assert probes[2]["periodSeconds"] * probes[2]["failureThreshold"] >= 60
    [application] = charts.serve_config(objects)["applications"]
    assert application["args"]["decode_ray"]["start_timeout_s"] == 7200
    assert charts.scaling_settings(objects)["start_timeout_s"] == 7200  # or the planner would take it back before
    assert charts.scaling_settings(rendered({"autoscaling": {"startTimeoutSeconds": 2500}}))["start_timeout_s"] == 2500


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"minReplicas": 1}, 1),
        ({"minReplicas": 4}, 3),
        ({"minReplicas": 4, "replicasPerPod": 2}, 1),
        ({"minReplicas": 4, "podDisruptionBudget": {"minAvailable": 0}}, 0),
    ],
)
def test_evictions_leave_workers(values: dict[str, Any], expected: int) -> None:
    """As a number: a RayCluster has no scale that Kubernetes could ask for."""
    objects = rendered({"decode": values})
    budget = charts.only(objects, "PodDisruptionBudget", "baton-decode")["spec"]
    assert budget["minAvailable"] == expected
    assert "maxUnavailable" not in budget
    chosen = {
        name
        for name, template in charts.pod_templates(objects).items()
        if selects(budget["selector"], template["metadata"]["labels"])
    }
    assert chosen == {"RayService/baton/decode"}


def test_each_disruption_budget_can_be_disabled() -> None:
    off = {"podDisruptionBudget": {"enabled": False}}
    objects = rendered(dict.fromkeys(("router", "head", *POOLS), off))
    assert not [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert len([each for each in rendered() if each["kind"] == "PodDisruptionBudget"]) == 4


def test_rdma_adds_the_device_and_its_requirements() -> None:
    container = main_container(worker(charts.render(CASES["rdma"])))
    limits = container["resources"]["limits"]
    assert (limits["rdma/hca"], limits["hugepages-2Mi"], limits["nvidia.com/gpu"]) == (1, "2Gi", 1)
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["UCX_TLS"] == "rc,cuda_copy,cuda_ipc,tcp"
    assert env["UCX_NET_DEVICES"] == "all"
    assert {"name": "hugepages", "mountPath": "/dev/hugepages"} in container["volumeMounts"]
    without = main_container(worker(rendered()))
    assert not [each for each in without["env"] if each["name"].startswith("UCX_")]
    assert set(without["resources"]["limits"]) == {"cpu", "memory", "nvidia.com/gpu"}
    head = charts.pod_templates(charts.render(CASES["rdma"]))["RayService/baton/head"]
    assert set(main_container(head)["resources"]["limits"]) == {"cpu", "memory"}


def test_shared_memory_has_a_size() -> None:
    volumes = {each["name"]: each for each in worker(rendered({"decode": {"shmGi": 12}}))["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "12Gi"}


def test_spreading_counts_the_components_own_pods() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**spread, "labelSelector": {"matchLabels": {"a": "b"}}}
    template = worker(rendered({"decode": {"topologySpreadConstraints": [spread, own]}}))
    [first, second] = template["spec"]["topologySpreadConstraints"]
    assert selects(first["labelSelector"], template["metadata"]["labels"])
    assert not selects(first["labelSelector"], worker(rendered(), "prefill")["metadata"]["labels"])
    assert second == own


def test_placement_applies_to_its_own_pool() -> None:
    placement = {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "extraEnv": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "extraResources": {"vendor.example/nic": 2},
        "extraVolumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    objects = rendered({"decode": placement})
    template = worker(objects)
    names = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName")
    assert {name: template["spec"][name] for name in names} == {name: placement[name] for name in names}
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    container = main_container(template)
    assert placement["extraEnv"][0] in container["env"]
    assert container["resources"]["requests"]["vendor.example/nic"] == 2
    assert placement["extraVolumes"][0] in template["spec"]["volumes"]
    assert placement["extraVolumeMounts"][0] in container["volumeMounts"]
    assert worker(objects, "prefill") == worker(rendered(), "prefill")


def test_ray_pods_have_no_annotations() -> None:
    """The operator would build a second cluster."""
    for name in ("head", *POOLS):
        assert "annotations" not in worker(rendered(), name)["metadata"]

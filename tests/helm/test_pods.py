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
        ({"minReplicas": 1, "tensorParallelSize": 4, "nodesPerWorker": 2}, 2),  # those of the only worker
        ({"minReplicas": 2, "tensorParallelSize": 4, "nodesPerWorker": 2}, 3),
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
        "schedulerName": "volcano",
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
    names = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName", "runtimeClassName")
    assert {name: template["spec"][name] for name in names} == {name: placement[name] for name in names}
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    container = main_container(template)
    assert placement["extraEnv"][0] in container["env"]
    assert container["resources"]["requests"]["vendor.example/nic"] == 2
    assert placement["extraVolumes"][0] in template["spec"]["volumes"]
    assert placement["extraVolumeMounts"][0] in container["volumeMounts"]
    assert worker(objects, "prefill") == worker(rendered(), "prefill")


def test_download_job_and_test_are_placed_like_the_decode_workers_by_default() -> None:
    """A volume that is bound when its first pod is placed must not bind where workers cannot run."""
    job = {"type": "pvc", "job": {"enabled": True}}
    affinity: dict[str, Any] = {"nodeAffinity": {"a": "b"}}
    placement = {"nodeSelector": {"gpu": "h200"}, "priorityClassName": "high", "affinity": affinity}
    apart = {"affinity": {**affinity, "podAntiAffinity": {"c": "d"}}}  # from other workers, as on one GPU a node
    objects = rendered({"decode": {**placement, **apart}, "modelCache": job})
    for kind, name in (("Job", None), ("Pod", "baton-test")):
        spec = charts.only(objects, kind, name)["spec"]
        spec = spec["template"]["spec"] if kind == "Job" else spec
        assert {key: spec[key] for key in placement} == placement
        assert spec["tolerations"] == worker(objects)["spec"]["tolerations"]
    own = {"nodeSelector": {}, "tolerations": [], "affinity": {}, "priorityClassName": "low", "schedulerName": "other"}
    objects = rendered({"decode": placement, "modelCache": charts.merged(job, {"job": own}), "tests": own})
    for spec in (charts.only(objects, "Job")["spec"]["template"]["spec"], charts.only(objects, "Pod")["spec"]):
        assert not {"nodeSelector", "tolerations", "affinity"} & set(spec)
        assert (spec["priorityClassName"], spec["schedulerName"]) == ("low", "other")


def test_a_job_that_differs_has_another_name() -> None:
    """Kubernetes refuses every change of a job's template."""
    job = {"modelCache": {"type": "pvc", "job": {"enabled": True}}}
    names = {
        charts.only(rendered(job, values), "Job")["metadata"]["name"]
        for values in ({}, {"decode": {"nodeSelector": {"a": "b"}}}, {"commonLabels": {"a": "b"}})
    }
    assert len(names) == 3


@pytest.mark.parametrize(
    ("image", "workers", "others"),
    [
        ({}, "0.1.0-cuda", "0.1.0-cpu"),
        ({"tag": "mine"}, "mine", "mine"),
    ],
)
def test_only_workers_use_the_image_with_the_gpu_libraries(image: dict[str, Any], workers: str, others: str) -> None:
    objects = rendered({"image": image, "modelCache": {"type": "pvc", "job": {"enabled": True}}})
    for name, template in charts.pod_templates(objects).items():
        used = {each["image"] for each in charts.containers(template) if each["name"] != "redis"}
        tag = workers if name in {f"RayService/baton/{pool}" for pool in POOLS} else others
        assert used in ({f"registry.example.com/baton:{tag}"}, set()), name


def test_each_component_may_have_an_image_of_its_own() -> None:
    digest = "sha256:" + "2" * 64
    objects = rendered(
        {
            "image": {"digest": "sha256:" + "1" * 64},
            "router": {"image": {"digest": digest}},
            "head": {"image": {"tag": "0.1.0-cpu"}},
            "modelCache": {"type": "pvc", "job": {"enabled": True, "image": {"repository": "r.example.com/other"}}},
        }
    )
    templates = charts.pod_templates(objects)
    [job] = [template for name, template in templates.items() if name.startswith("Job/")]
    assert main_container(job)["image"] == "r.example.com/other:0.1.0-cpu"
    assert main_container(worker(objects, "head"))["image"] == "registry.example.com/baton:0.1.0-cpu"
    router = templates["Deployment/baton-router"]
    assert {each["image"] for each in charts.containers(router)} == {f"registry.example.com/baton@{digest}"}
    assert main_container(worker(objects))["image"] == "registry.example.com/baton@sha256:" + "1" * 64


def test_sidecars_and_volumes_are_added() -> None:
    sidecar = {"name": "agent", "image": "agent:1", "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]}
    volume, mount = {"name": "scratch", "emptyDir": {}}, {"name": "scratch", "mountPath": "/scratch"}
    extra = {"extraContainers": [sidecar], "extraVolumes": [volume], "extraVolumeMounts": [mount]}
    objects = rendered(dict.fromkeys(("router", "head", *POOLS), extra))
    names = ["Deployment/baton-router", *(f"RayService/baton/{each}" for each in ("head", *POOLS))]
    for template in (charts.pod_templates(objects)[name] for name in names):
        assert template["spec"]["containers"][-1] == sidecar
        assert volume in template["spec"]["volumes"]
        assert mount in main_container(template)["volumeMounts"]
        assert main_container(template)["name"] != "agent"  # the operator takes the first for Ray's


def test_common_labels_and_annotations_are_on_all_objects_and_pods() -> None:
    common = {"commonLabels": {"team": "llm"}, "commonAnnotations": {"owner": "a@example.com"}}
    values = {"commonLabels": {"team": "llm"}, "router": {"podLabels": {"team": "edge"}}}
    objects = charts.render(charts.merged(CASES["everything"], common))
    objects += charts.render(charts.merged(CASES["tls-monitoring"], common))
    own = [each for each in objects if not each["metadata"]["name"].endswith("-extra")]
    templates = [*charts.pod_templates(own).values()]
    for each in (*own, *templates):
        assert each["metadata"]["labels"]["team"] == "llm"
        assert each["metadata"]["annotations"]["owner"] == "a@example.com"
    router = charts.pod_templates(rendered(values))["Deployment/baton-router"]
    assert router["metadata"]["labels"]["team"] == "edge"


def test_kueue_queues_the_service_and_not_its_pods() -> None:
    objects = rendered({"ray": {"queueName": "users"}})
    label = "kueue.x-k8s.io/queue-name"
    assert charts.only(objects, "RayService")["metadata"]["labels"][label] == "users"
    assert not [each for each in charts.pod_templates(objects).values() if label in each["metadata"]["labels"]]
    assert label not in charts.only(rendered(), "RayService")["metadata"]["labels"]


def test_pods_request_the_disk_that_their_volumes_may_use() -> None:
    values = {"tmpSizeLimit": "20Gi", "modelCache": {"sizeLimit": "100G"}}

    def requested(name: str, more: dict[str, Any]) -> object:
        container = main_container(charts.pod_templates(rendered(values, more))[name])
        return container["resources"]["requests"].get("ephemeral-storage")

    model_mib = -(-100 * 10**9 // 2**20)
    assert requested("RayService/baton/decode", {}) == f"{20 * 1024 + model_mib}Mi"
    assert requested("RayService/baton/head", {}) == f"{21 * 1024}Mi"
    assert requested("Deployment/baton-router", {}) == f"{3 * 1024}Mi"
    shared = {"modelCache": {"type": "pvc"}}
    assert requested("RayService/baton/decode", shared) == f"{20 * 1024}Mi"
    assert requested("Deployment/baton-router", shared) == f"{2 * 1024}Mi"
    assert requested("RayService/baton/decode", {"decode": {"extraResources": {"ephemeral-storage": "1Gi"}}}) == "1Gi"
    assert requested("RayService/baton/decode", {"ephemeralStorageRequests": False}) is None
    limits = {"router": {"resources": {"limits": {"ephemeral-storage": "1Gi"}}}}
    assert requested("Deployment/baton-router", limits) is None


def test_ray_pods_have_no_annotations() -> None:
    """The operator would build a second cluster."""
    for name in ("head", *POOLS):
        assert "annotations" not in worker(rendered(), name)["metadata"]

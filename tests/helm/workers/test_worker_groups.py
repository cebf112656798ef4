"""Ray's worker groups: their pods have what the replicas need that come to them."""

import pytest
from helm_python import HelmError

from tests.helm import charts
from tests.helm.application import ray_cluster, settings_of
from tests.helm.cases import CASES
from tests.helm.schema import schemas

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr


@pytest.mark.parametrize("case", CASES)
def test_each_deployment_fits_exactly_one_group(case: str) -> None:
    """By the node types that Ray itself derives from the RayCluster."""
    objects = charts.render(CASES[case])
    types = _derive_autoscaling_config_from_ray_cr(ray_cluster(objects))["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    settings = settings_of(objects)
    [application] = charts.serve_config(objects)["applications"]
    values = charts.chart().merge_values(CASES[case])
    for deployment in application["deployments"]:
        name = deployment["name"]
        options = settings.deployments[name]
        needs = {"CPU": options.replicas.num_cpus, "GPU": settings.num_gpus(name)}
        fitting = [
            type_name
            for type_name, node in types.items()
            if options.label_selector.items() <= node["labels"].items()
            and all(node["resources"].get(resource, 0) >= amount for resource, amount in needs.items())
        ]
        assert fitting == [name]
        node = types[name]
        room = min(node["resources"].get(resource, 0) // amount for resource, amount in needs.items() if amount)
        assert room == values[name]["replicasPerPod"] == options.replicas.max_replicas_per_node
        bounds = deployment.get("autoscaling_config")
        most = bounds["max_replicas"] if bounds else deployment["num_replicas"]
        assert most <= node["max_workers"] * room
        assert node["min_workers"] == 0  # the operator tells a running cluster no other


@pytest.mark.parametrize("case", CASES)
def test_pods_have_the_resources_of_their_replicas(case: str) -> None:
    objects = charts.render(CASES[case])
    values = charts.chart().merge_values(CASES[case])
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        container = group["template"]["spec"]["containers"][0]
        limits, pool = container["resources"]["limits"], values[group["groupName"]]
        requests = dict(container["resources"]["requests"])
        assert requests.pop("ephemeral-storage")
        assert requests == limits
        assert int(limits["cpu"].removesuffix("m")) >= pool["cpu"] * pool["replicasPerPod"] * 1000
        assert int(limits["memory"].removesuffix("Mi")) > pool["memoryGi"] * pool["replicasPerPod"] * 1024
        assert str(limits.get(values["gpuResource"], 0)) == group["resources"].get("GPU", "0")


def test_gpus_by_claim_instead_of_a_device_plugin() -> None:
    values = charts.merged(charts.MODEL, {"decode": {"gpuClaimTemplate": "one-gpu"}})
    objects = charts.render(values, kube_version="v1.34.0")
    for each in objects:
        schemas.check(each, "v1.34.0")
    prefill, decode = ray_cluster(objects)["spec"]["workerGroupSpecs"]
    spec = decode["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "one-gpu"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in spec["containers"][0]["resources"]["limits"]
    assert decode["resources"]["GPU"] == "1"  # Ray sees none in the limits
    assert "resourceClaims" not in prefill["template"]["spec"]
    with pytest.raises(HelmError, match=r"needs Kubernetes 1\.34, and this is v1\.33\.0"):
        charts.render(values, kube_version="v1.33.0")

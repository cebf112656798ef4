"""What the planner is told: it takes it, finds it, and other bounds restart nothing."""

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from baton.deployment.kubernetes.settings import KubernetesSettings
from baton.deployment.ray.scaling import POOLS
from baton.deployment.ray.scaling_options import TLS, read_options
from baton.deployment.ray.serve_context import serve_conflicts
from tests.helm import charts
from tests.helm.application import ray_cluster, without_replicas
from tests.helm.cases import CASES, MONITORING

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

from ray.serve._private.common import DeploymentID
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeApplicationSchema


@pytest.mark.parametrize("case", CASES)
def test_the_planner_accepts_its_arguments(case: str, tmp_path: Any) -> None:
    objects = charts.render(CASES[case])
    [application] = charts.serve_config(objects)["applications"]
    policy = application.get("autoscaling_policy")
    if policy is None:
        assert case == "external"
        assert all("num_replicas" in each for each in application["deployments"])
        return
    told, settings = policy["policy_kwargs"], tmp_path / "settings.yaml"
    settings.write_text(yaml.safe_dump(charts.scaling_settings(objects)))
    (tmp_path / "url").write_text("redis://cache:6379/0")
    options = read_options({**told, "registry_file": str(tmp_path / "url"), "settings_file": str(settings)})
    assert options.model == application["args"]["served_model_name"]
    workers = application["args"]  # whose roles it changes over TLS, with files that every pod of Ray has
    assert {name: value for name, value in told.items() if name in TLS} == {
        name: value for name, value in workers.items() if name in TLS
    }
    least = sum(
        each["autoscaling_config"]["min_replicas"] * limits.gpus_per_replica
        for each, limits in zip(application["deployments"], options.settings.limits.both(), strict=True)
    )
    assert options.settings.budget_gpus >= least
    for deployment in application["deployments"]:
        config = AutoscalingConfig(**deployment["autoscaling_config"])
        assert list(serve_conflicts({DeploymentID(deployment["name"]): SimpleNamespace(config=config)}, POOLS)) == []


def test_the_planners_settings_file_is_mounted_in_the_head() -> None:
    objects = charts.render(charts.MODEL)
    [application] = charts.serve_config(objects)["applications"]
    file = PurePosixPath(application["autoscaling_policy"]["policy_kwargs"]["settings_file"])
    head = charts.pod_templates(objects)["RayService/baton/head"]["spec"]
    [mount] = [each for each in head["containers"][0]["volumeMounts"] if each["mountPath"] == str(file.parent)]
    assert "subPath" not in mount  # such a file never changes
    [volume] = [each for each in head["volumes"] if each["name"] == mount["name"]]
    assert file.name in charts.only(objects, "ConfigMap", volume["configMap"]["name"])["data"]


def test_the_budgets_section_matches_the_pods() -> None:
    objects = charts.render(CASES["everything"])
    [application] = charts.serve_config(objects)["applications"]
    section = application["autoscaling_policy"]["policy_kwargs"]["kubernetes"]
    settings = KubernetesSettings.of(section)
    assert settings.own_namespace_only
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        pods = getattr(settings, group["groupName"])
        labels = group["template"]["metadata"]["labels"]
        assert pods.labels.items() <= labels.items()
        assert str(pods.gpus_per_pod) == group["resources"]["GPU"]
    role = charts.only(objects, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    cluster_role = charts.only(objects, "ClusterRole")
    assert cluster_role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]


BOUNDS: list[dict[str, Any]] = [
    {"decode": {"maxReplicas": 16}},
    {"prefill": {"minReplicas": 2}, "decode": {"minReplicas": 3}},
    {"autoscaling": {"startSeconds": 90, "upscaleDelaySeconds": 1, "flipSeconds": 1}},
    {"autoscaling": {"budgetGPUs": 4}},
]


@pytest.mark.parametrize("change", BOUNDS)
def test_a_change_of_bounds_restarts_nothing(change: dict[str, Any]) -> None:
    """The operator builds a second cluster for any other change of `rayClusterConfig`; Serve restarts replicas where
    it takes the application for another version.
    """
    before, after = charts.render(charts.MODEL), charts.render(charts.merged(charts.MODEL, change))
    assert without_replicas(before) == without_replicas(after)
    old, new = (charts.serve_config(each)["applications"][0] for each in (before, after))
    assert (old, charts.scaling_settings(before)) != (new, charts.scaling_settings(after))
    versions = [get_app_code_version(ServeApplicationSchema.model_validate(each)) for each in (old, new)]
    assert versions[0] == versions[1]
    templates = [charts.pod_templates(each)["Deployment/baton-router"] for each in (before, after)]
    assert templates[0] == templates[1]


def test_idle_seconds_scale_both_pools_to_zero_and_requests_wait_for_them() -> None:
    values = {"autoscaling": {"idleSeconds": 900}, "decode": {"minReplicas": 2, "startTimeoutSeconds": 2400}}
    objects = charts.render(charts.merged(charts.MODEL, values, MONITORING))
    [application] = charts.serve_config(objects)["applications"]
    assert [each["autoscaling_config"]["min_replicas"] for each in application["deployments"]] == [0, 0]
    settings = charts.scaling_settings(objects)
    assert settings["idle_s"] == 900
    assert settings["decode"]["min_replicas"] == 2  # once there are requests
    router = router_config(objects)
    assert router["cold_start_timeout_s"] == 2400
    [alert] = [each for each in alerts_of(objects) if each["alert"] == "BatonNoDecodeWorker"]
    assert "baton:router_waiting" in alert["expr"]
    assert alert["for"] == "2400s"
    assert [each["replicas"] for each in ray_cluster(objects)["spec"]["workerGroupSpecs"]] == [0, 0]
    precise = charts.merged(
        charts.MODEL, MONITORING, {"autoscaling": {"idleSeconds": 1e6, "startTimeoutSeconds": 2e6 + 0.5}}
    )
    large = charts.render(precise)
    assert charts.scaling_settings(large)["idle_s"] == 1_000_000
    assert [each["for"] for each in alerts_of(large) if each["alert"] == "BatonNoDecodeWorker"] == ["2000001s"]
    own = charts.merged(charts.MODEL, values, {"router": {"config": {"coldStartTimeoutS": 60}}})
    assert router_config(charts.render(own))["cold_start_timeout_s"] == 60
    by_hand = charts.merged(charts.MODEL, MONITORING, values, {"autoscaling": {"enabled": False}})
    for usual in (charts.render(charts.merged(charts.MODEL, MONITORING)), charts.render(by_hand)):
        assert "cold_start_timeout_s" not in router_config(usual)
        [alert] = [each for each in alerts_of(usual) if each["alert"] == "BatonNoDecodeWorker"]
        assert "router_waiting" not in alert["expr"]
        assert alert["for"] == "2m"
    assert "idle_s" not in charts.scaling_settings(charts.render(charts.MODEL))


def router_config(objects: Any) -> dict[str, Any]:
    """The routers' config file."""
    [config] = [each for each in objects if each["kind"] == "ConfigMap" and "router.yaml" in each.get("data", {})]
    found: dict[str, Any] = yaml.safe_load(config["data"]["router.yaml"])
    return found


def alerts_of(objects: Any) -> list[dict[str, Any]]:
    """All alerts."""
    groups = charts.only(objects, "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_a_change_of_promised_latencies_restarts_only_routers() -> None:
    before, after = (charts.render(charts.merged(charts.MODEL, {"slo": {"ttftSeconds": each}})) for each in (1, 0.5))
    assert without_replicas(before) == without_replicas(after)
    routers = [router_config(each) for each in (before, after)]
    assert [each["slo"] for each in routers] == ["ttft=1s,tpot=0.05s", "ttft=0.5s,tpot=0.05s"]

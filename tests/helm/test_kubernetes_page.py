"""docs/kubernetes.md says what is so: its values are the chart's, and its commands are Baton's."""

import json
import re
from typing import Any

import pytest
import yaml

from baton.__main__ import COMMANDS
from tests.helm.api_server.kuberay_operator import without_sizes
from tests.helm.charts import CHART, MODEL, merged, only, pod_templates, render, scaling_settings, serve_config

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeApplicationSchema

PAGE = (CHART.parents[1] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
QUOTED = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", PAGE)


# What a change does, by a part of its row in the page's table, and changes that the row names.
SERVE, PLANNER, ROUTERS = "Serve's config", "a ConfigMap", "routers roll"
REPLICAS, CLUSTER = "restarts the replicas", "second cluster"
BY_HAND = {"autoscaling": {"enabled": False}}
UPGRADES: list[tuple[str, str, dict[str, Any]]] = [
    (SERVE, "minReplicas", {"decode": {"minReplicas": 2}}),
    (SERVE, "maxReplicas", {"prefill": {"maxReplicas": 9}}),
    (ROUTERS, "slo", {"slo": {"ttftSeconds": 2}}),
    (PLANNER, "autoscaling", {"autoscaling": {"budgetGPUs": 3}}),
    (ROUTERS, "router.*", {"router": {"config": {"maxQueueWaitS": 2}}}),
    (ROUTERS, "auth.*", {"auth": {"apiKeys": {"existingSecret": "keys"}, "clientKey": {"existingSecret": "key"}}}),
    (ROUTERS, "tls.https", {"tls": {"https": {"enabled": True, "existingSecret": "cert"}}}),
    (REPLICAS, "engine.*", {"engine": {"maxNumSeqs": 8}}),
    (REPLICAS, "transport", {"transport": "tcp"}),
    (REPLICAS, "strict", {"strict": True}),
    (REPLICAS, "maxStepSeconds", {"maxStepSeconds": 9}),
    (REPLICAS, "kvStores", {"kvStores": {"disk": "/kv"}}),
    (REPLICAS, "tracing", {"tracing": {"endpoint": "http://collector:4318"}}),
    (REPLICAS, "startTimeoutSeconds", {"decode": {"startTimeoutSeconds": 3600}}),
    (REPLICAS, "healthCheck*Seconds", {"decode": {"healthCheckPeriodSeconds": 5}}),
    (REPLICAS, "autoscaling.enabled", BY_HAND),
    (REPLICAS, "autoscaling.clusterBudget", {"autoscaling": {"clusterBudget": {"enabled": True}}}),
    (CLUSTER, "image", {"image": {"tag": "other"}}),
    (CLUSTER, "resources", {"decode": {"memoryGi": 64}}),
    (CLUSTER, "nodeSelector", {"decode": {"nodeSelector": {"gpu": "h200"}}}),
    (CLUSTER, "rdma", {"rdma": {"enabled": True}}),
    (CLUSTER, "drainTimeoutSeconds", {"drainTimeoutSeconds": 60}),
    (CLUSTER, "tls.internal", {"tls": {"internal": {"enabled": True, "existingSecret": "cert"}}}),
    (CLUSTER, "autoscaling.upscalingMode", {"autoscaling": {"upscalingMode": "Aggressive"}}),
]


def property_of(schema: dict[str, Any], path: list[str]) -> bool:
    """Whether a value of the schema has this path."""
    if "$ref" in schema:
        return property_of(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], path)
    if not path:
        return True
    inner = schema.get("properties", {}).get(path[0])
    return inner is not None and property_of(inner, path[1:])


@pytest.mark.parametrize("block", BLOCKS)
def test_the_pages_values_install(block: str) -> None:
    assert len(render(merged(MODEL, yaml.safe_load(block)))) > 8


def test_the_values_named_on_the_page_exist() -> None:
    names = [
        text.rstrip(".*").partition(":")[0].partition("=")[0].removeprefix("--set ").split(".")
        for text in QUOTED
        if re.fullmatch(r"[a-zA-Z.]+(\.\*)?([:=].*)?", text)
    ]
    known = [name for name in names if name[0] in SCHEMA["properties"]]
    assert len(known) > 20
    assert [".".join(name) for name in known if not property_of(SCHEMA, name)] == []


@pytest.mark.parametrize(("effect", "name", "change"), UPGRADES)
def test_an_upgrade_has_the_documented_effect(effect: str, name: str, change: dict[str, Any]) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("|") and effect in line.split("|")[2]]
    assert name in row.split("|")[1].replace("`", " ").replace(",", " ").split()
    assert effect_of(change) == effect


def test_a_manual_size_change_restarts_nothing() -> None:
    """Where sizes were by hand before."""
    assert effect_of({"decode": {"replicas": 2}}, merged(MODEL, BY_HAND)) == SERVE


def effect_of(change: dict[str, Any], values: dict[str, Any] = MODEL) -> str:
    """By what KubeRay, Serve and the Deployment's controller compare."""
    before, after = render(values), render(merged(values, change))
    clusters = [without_sizes(only(each, "RayService")["spec"]["rayClusterConfig"]) for each in (before, after)]
    if clusters[0] != clusters[1]:
        return CLUSTER
    applications = [serve_config(each)["applications"][0] for each in (before, after)]
    versions = [get_app_code_version(ServeApplicationSchema.model_validate(each)) for each in applications]
    if versions[0] != versions[1]:
        return REPLICAS
    routers = [pod_templates(each)["Deployment/baton-router"] for each in (before, after)]
    if routers[0] != routers[1]:
        return ROUTERS
    if applications[0] != applications[1]:
        return SERVE
    assert scaling_settings(before) != scaling_settings(after)
    return PLANNER


def test_the_commands_on_the_page_exist() -> None:
    commands = set(re.findall(r"(?:^|`)baton (\w+)", PAGE, re.MULTILINE))
    assert {"bench", "status", "drain", "key", "doctor"} <= commands <= set(COMMANDS)

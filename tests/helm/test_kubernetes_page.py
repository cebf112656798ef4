"""docs/kubernetes.md says what is so: its values are the chart's, and its commands are Baton's."""

import json
import re
from typing import Any

import pytest
import yaml

from baton.__main__ import COMMANDS
from tests.helm.api_server.kuberay_operator import without_sizes
from tests.helm.charts import CHART, MODEL, merged, only, pod_templates, render, serve_config

PAGE = (CHART.parents[1] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
QUOTED = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", PAGE)


# What a change does, by a part of its row in the page's table, and changes that the row names.
SERVE, ROUTERS, REPLICAS, CLUSTER = "Serve's config alone", "routers roll", "restarts the replicas", "second cluster"
UPGRADES: list[tuple[str, str, dict[str, Any]]] = [
    (SERVE, "replicas", {"decode": {"replicas": 2}}),
    (SERVE, "minReplicas", {"decode": {"minReplicas": 2}}),
    (SERVE, "maxReplicas", {"prefill": {"maxReplicas": 9}}),
    (SERVE, "autoscaling", {"autoscaling": {"slo": {"ttftSeconds": 2}}}),
    (SERVE, "autoscaling", {"autoscaling": {"budgetGPUs": 3}}),
    (ROUTERS, "router.*", {"router": {"config": {"maxQueueWaitS": 2}}}),
    (ROUTERS, "auth.*", {"auth": {"apiKeys": {"existingSecret": "keys"}, "clientKey": {"existingSecret": "key"}}}),
    (ROUTERS, "tls.https", {"tls": {"https": {"enabled": True, "existingSecret": "cert"}}}),
    (REPLICAS, "engine.*", {"engine": {"maxNumSeqs": 8}}),
    (REPLICAS, "transport", {"transport": "tcp"}),
    (REPLICAS, "strict", {"strict": True}),
    (REPLICAS, "maxStepSeconds", {"maxStepSeconds": 9}),
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
def test_its_values_install(block: str) -> None:
    assert len(render(merged(MODEL, yaml.safe_load(block)))) > 8


def test_the_values_that_it_names_are_there() -> None:
    names = [
        text.rstrip(".*").partition(":")[0].partition("=")[0].removeprefix("--set ").split(".")
        for text in QUOTED
        if re.fullmatch(r"[a-zA-Z.]+(\.\*)?([:=].*)?", text)
    ]
    known = [name for name in names if name[0] in SCHEMA["properties"]]
    assert len(known) > 20
    assert [".".join(name) for name in known if not property_of(SCHEMA, name)] == []


@pytest.mark.parametrize(("effect", "name", "change"), UPGRADES)
def test_an_upgrade_does_what_its_row_says(effect: str, name: str, change: dict[str, Any]) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("|") and effect in line.split("|")[2]]
    assert name in row.split("|")[1].replace("`", " ").replace(",", " ").split()
    assert effect_of(change) == effect


def effect_of(change: dict[str, Any]) -> str:
    """By what KubeRay, Serve and the Deployment's controller compare."""
    before, after = render(MODEL), render(merged(MODEL, change))
    clusters = [without_sizes(only(each, "RayService")["spec"]["rayClusterConfig"]) for each in (before, after)]
    if clusters[0] != clusters[1]:
        return CLUSTER
    applications = [serve_config(each)["applications"][0] for each in (before, after)]
    if applications[0]["args"] != applications[1]["args"]:
        return REPLICAS
    routers = [pod_templates(each)["Deployment/baton-router"] for each in (before, after)]
    if routers[0] != routers[1]:
        return ROUTERS
    assert applications[0] != applications[1]
    return SERVE


def test_the_commands_that_it_gives_are_there() -> None:
    commands = set(re.findall(r"(?:^|`)baton (\w+)", PAGE, re.MULTILINE))
    assert {"bench", "status", "drain", "key", "doctor"} <= commands <= set(COMMANDS)

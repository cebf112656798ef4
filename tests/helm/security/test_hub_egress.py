"""Only who downloads the model reaches the hub."""

from typing import Any

import pytest

from tests.helm import charts
from tests.helm.cases import JOB
from tests.helm.label_selectors import selects


@pytest.mark.parametrize(
    ("endpoint", "ports"),
    [
        ("", [443]),
        ("https://mirror.example.com", [443]),
        ("https://mirror.example.com:8443/hub", [443, 8443]),
        ("http://mirror.example.com", [443, 80]),
        ("http://[fd00::1]:8081", [443, 8081]),
        ("http://[fd00::1]", [443, 80]),
    ],
)
def test_policies_allow_a_mirrors_port(endpoint: str, ports: list[int]) -> None:
    values = charts.merged(charts.MODEL, {"modelCache": {"hubEndpoint": endpoint}})
    for more, names in (({}, ("baton-router", "baton-workers")), (JOB, ("baton-fetch",))):
        objects = charts.render(charts.merged(values, more))
        for name in names:
            rules = charts.only(objects, "NetworkPolicy", name)["spec"]["egress"]
            [rule] = [each for each in rules if "ipBlock" in str(each)]
            assert rule["ports"] == [{"port": port} for port in ports]
            assert [each["ipBlock"]["cidr"] for each in rule["to"]] == ["0.0.0.0/0", "::/0"]


@pytest.mark.parametrize(
    ("cache", "asking"),
    [
        ({}, {"router", "prefill", "decode"}),
        ({"type": "pvc"}, {"router", "prefill", "decode"}),
        ({"type": "hostPath", "hostPath": "/m"}, {"router", "prefill", "decode"}),
        (JOB["modelCache"], {"fetch"}),
    ],
)
def test_only_downloading_pods_may_connect_to_the_hub(cache: dict[str, Any], asking: set[str]) -> None:
    """A policy is of a pod, for as long as it lives: so one job downloads, and the others wait."""
    objects = charts.render(charts.merged(charts.MODEL, {"modelCache": cache}))
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    downloading, reaching = set(), set()
    for template in charts.pod_templates(objects).values():
        labels = template["metadata"]["labels"]
        component = labels["app.kubernetes.io/component"]
        [policy] = [each for each in policies if selects(each["podSelector"], labels)]
        if any("ipBlock" in str(rule) for rule in policy["egress"]) and component != "head":  # the API server
            reaching.add(component)
        commands = [each["command"] for each in charts.containers(template) if "command" in each]
        if any(each[:2] == ["baton", "fetch"] and "--wait" not in each for each in commands):
            downloading.add(component)
    assert reaching == downloading == asking


@pytest.mark.parametrize("model", ["bundled", "/models/x"])
def test_a_local_model_needs_no_egress(model: str) -> None:
    values = {"model": model, "modelCache": {"type": "hostPath", "hostPath": "/data"}}
    objects = charts.render(charts.merged(charts.MODEL, values))
    for each in objects:
        if each["kind"] == "NetworkPolicy" and not each["metadata"]["name"].endswith("-head"):
            assert not [rule for rule in each["spec"]["egress"] if "ipBlock" in str(rule)]

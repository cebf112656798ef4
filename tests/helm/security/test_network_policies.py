"""No pod is reached by more than has to reach it, and none reaches more than it has to."""

import pytest

from tests.helm import charts
from tests.helm.cases import CASES, JOB, PROMETHEUS
from tests.helm.label_selectors import selects
from tests.helm.security.policy_rules import allows, covers


@pytest.mark.parametrize("case", [each for each in CASES if each != "external"])
def test_each_pod_has_exactly_one_policy_for_ingress_and_egress(case: str) -> None:
    objects = charts.render(CASES[case])
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    for name, template in charts.pod_templates(objects).items():
        found = [each for each in policies if selects(each["spec"]["podSelector"], template["metadata"]["labels"])]
        assert len(found) == 1, name
        assert found[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]


# Who connects to whom, at which port (as the one who connects calls it, and the one who listens): all there is.
FLOWS = {
    ("router", "prefill", 40000, 40000): True,  # gRPC, at any port of the kernel's range
    ("router", "decode", 60999, 60999): True,
    ("router", "prefill", 8265, 8265): False,
    ("router", "redis", 6379, "redis"): True,
    ("router", "head", 6379, "gcs"): False,
    ("prefill", "decode", 40000, 40000): True,
    ("decode", "prefill", 40000, 40000): True,
    ("decode", "head", 6379, "gcs"): True,
    ("decode", "redis", 6379, "redis"): True,
    ("decode", "router", 8000, "http"): False,
    ("head", "redis", 6379, "redis"): True,
    ("head", "decode", 10002, 10002): True,
    ("redis", "router", 8000, "http"): False,
    ("redis", "decode", 40000, 40000): False,
    ("test", "router", "http", "http"): True,
    ("test", "decode", 40000, 40000): False,
    ("test", "redis", 6379, "redis"): False,
    ("fetch", "redis", 6379, "redis"): False,
}


@pytest.mark.parametrize("flow", FLOWS)
def test_policies_allow_the_existing_flows(flow: tuple[str, str, int | str, int | str]) -> None:
    source, target, out_port, in_port = flow
    objects = charts.render(
        charts.merged(charts.MODEL, JOB, {"networkPolicy": {"clients": [{"ipBlock": {"cidr": "::/0"}}]}})
    )
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    own = {"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/instance": "baton"}
    labels = {name: {**own, "app.kubernetes.io/component": name} for name in (source, target)}
    [of_source] = [each for each in policies if selects(each["podSelector"], labels[source])]
    [of_target] = [each for each in policies if selects(each["podSelector"], labels[target])]
    passes = allows(of_source["egress"], "to", labels[target], out_port)
    passes = passes and allows(of_target["ingress"], "from", labels[source], in_port)
    assert passes is FLOWS[flow]


# Which of Prometheus' requests a pod lets in, with networkPolicy.monitoring, and with clients alone.
SCRAPES = {
    ("router", "http"): (True, False),
    ("head", "metrics"): (True, False),
    ("prefill", "metrics"): (True, False),
    ("decode", "metrics"): (True, False),
    ("decode", "http"): (False, False),
    ("head", "dashboard"): (False, False),
    ("redis", "redis"): (False, False),
}


@pytest.mark.parametrize("target", SCRAPES)
def test_prometheus_reaches_metrics_and_nothing_else(target: tuple[str, str]) -> None:
    component, port = target
    own = {"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/instance": "baton"}
    clients = [{"namespaceSelector": {"matchLabels": {"name": "apps"}}}]
    for monitoring, expected in zip(([PROMETHEUS], []), SCRAPES[target], strict=True):
        values = {"networkPolicy": {"clients": clients, "monitoring": monitoring}}
        policies = [
            each["spec"]
            for each in charts.render(charts.merged(charts.MODEL, values))
            if each["kind"] == "NetworkPolicy"
        ]
        labels = {**own, "app.kubernetes.io/component": component}
        [policy] = [each for each in policies if selects(each["podSelector"], labels)]
        is_authorized = any(
            PROMETHEUS in rule.get("from", [PROMETHEUS])
            and any(covers(each, port) for each in rule.get("ports", [{"port": port}]))
            for rule in policy["ingress"]
        )
        assert is_authorized is expected


def test_notes_warn_if_prometheus_may_be_blocked() -> None:
    monitor = {"monitoring": {"serviceMonitor": {"enabled": True}}}
    clients = {"networkPolicy": {"clients": [PROMETHEUS]}}
    peers = {"networkPolicy": {"monitoring": [PROMETHEUS]}}
    for values, told in (((monitor,), False), ((monitor, clients), True), ((monitor, clients, peers), False)):
        notes = charts.render_files(charts.merged(charts.MODEL, *values))["baton/templates/NOTES.txt"]
        assert ("Prometheus reaches the routers only" in notes) is told


@pytest.mark.parametrize("case", [each for each in CASES if each != "external"])
def test_pods_with_egress_may_query_dns(case: str) -> None:
    """Those of the servers' pods too: a policy sees where a connection really goes, at OpenShift 5353."""
    dns = {"ports": [{"port": port, "protocol": name} for port in (53, 5353) for name in ("UDP", "TCP")]}
    for each in charts.render(CASES[case]):
        if each["kind"] == "NetworkPolicy" and each["spec"]["egress"]:
            assert dns in each["spec"]["egress"], each["metadata"]["name"]


def test_other_pods_cannot_reach_workers() -> None:
    policies = [each["spec"] for each in charts.render(charts.MODEL) if each["kind"] == "NetworkPolicy"]
    foreign = {"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/instance": "other"}
    for policy in policies:
        for port in (6379, 8265, 40000, "redis", "gcs", "dashboard"):
            assert not allows(policy["ingress"], "from", {**foreign, "app.kubernetes.io/component": "router"}, port)


# Labels of the operator's pods, as KubeRay's chart and as its kustomize files (ray-operator/config/manager) set them.
OPERATORS = (
    {
        "app.kubernetes.io/name": "kuberay-operator",
        "app.kubernetes.io/instance": "kuberay-operator",
        "app.kubernetes.io/component": "kuberay-operator",
    },
    {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/component": "kuberay-operator"},
)


@pytest.mark.parametrize("labels", OPERATORS)
def test_the_operator_reaches_the_dashboard(labels: dict[str, str]) -> None:
    policy = charts.only(charts.render(charts.MODEL), "NetworkPolicy", "baton-head")["spec"]
    [rule] = [each for each in policy["ingress"] if {"port": "dashboard"} in each.get("ports", ())]
    assert [peer["namespaceSelector"] for peer in rule["from"] if selects(peer["podSelector"], labels)] == [{}]


def test_an_operator_outside_of_the_cluster_is_an_address() -> None:
    outside = [{"ipBlock": {"cidr": "10.20.0.0/28"}}]
    objects = charts.render(charts.merged(charts.MODEL, {"networkPolicy": {"operator": outside}}))
    rules = charts.only(objects, "NetworkPolicy", "baton-head")["spec"]["ingress"]
    assert {"from": outside, "ports": [{"port": "dashboard"}]} in rules


def test_policies_allow_exactly_the_ports_that_pods_use() -> None:
    ports = {"ray": {"ephemeralPorts": {"first": 20000, "last": 20999}}}
    objects = charts.render(charts.merged(charts.MODEL, ports))
    template = charts.pod_templates(objects)["RayService/baton/decode"]
    assert template["spec"]["securityContext"]["sysctls"] == [
        {"name": "net.ipv4.ip_local_port_range", "value": "20000 20999"}
    ]
    rules = charts.only(objects, "NetworkPolicy", "baton-workers")["spec"]["ingress"]
    assert {"port": 20000, "endPort": 20999} in rules[0]["ports"]

"""No pod may do more than it has to, and none is reached by more than has to reach it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helm import charts
from tests.helm.cases import CASES, PROMETHEUS

READ_ONLY_SECRETS = 0o440
JOB = {"modelCache": {"type": "pvc", "job": {"enabled": True}}}
WRITABLE = {"/tmp", "/dev/shm", "/models", "/data", "/dev/hugepages"}


def pods(case: str) -> Iterator[tuple[str, charts.Manifest]]:
    """Each pod's template, with a name for people."""
    yield from charts.pod_templates(charts.render(CASES[case])).items()


@pytest.mark.parametrize("case", CASES)
def test_every_container_is_restricted(case: str) -> None:
    for name, template in pods(case):
        spec = template["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        ids = {key: security[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in security}
        assert len(ids) == (0 if case == "openshift" else 3), name
        assert all(each > 0 for each in ids.values()), name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not any(spec.get(key) for key in ("hostIPC", "hostPID", "hostNetwork")), name
        for container in charts.containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert "privileged" not in context, name
            assert context["capabilities"]["drop"] == ["ALL"], name
            added = context["capabilities"].get("add", [])
            is_rdma_worker = case == "rdma" and container["name"] == "ray-worker"
            assert added == (["IPC_LOCK"] if is_rdma_worker else []), name


def test_the_autoscaler_beside_the_head_is_restricted_too() -> None:
    service = charts.only(charts.render(charts.MODEL), "RayService")
    options = service["spec"]["rayClusterConfig"]["autoscalerOptions"]
    assert options["securityContext"]["readOnlyRootFilesystem"] is True
    assert options["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [mount] = options["volumeMounts"]
    volumes = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["volumes"]
    assert mount["mountPath"] == "/tmp"
    assert mount["name"] in {each["name"] for each in volumes}


@pytest.mark.parametrize("case", CASES)
def test_mounts_are_of_volumes_that_are_there_and_only_scratch_is_writable(case: str) -> None:
    for name, template in pods(case):
        volumes = {each["name"]: each for each in template["spec"].get("volumes", ())}
        used = {"autoscaler-tmp"} & set(volumes)
        for container in charts.containers(template):
            for mount in container.get("volumeMounts", ()):
                assert mount["name"] in volumes, name
                used.add(mount["name"])
                assert mount.get("readOnly") or mount["mountPath"] in WRITABLE, (name, mount)
                if not mount.get("readOnly") and mount["mountPath"] == "/models":
                    assert container["name"] == "fetch"
        assert used == set(volumes), name
        for volume in volumes.values():
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == READ_ONLY_SECRETS, name
            if volume.get("emptyDir", {}).get("medium") != "HugePages-2Mi" and "emptyDir" in volume:
                assert volume["emptyDir"]["sizeLimit"], name


@pytest.mark.parametrize("case", CASES)
def test_only_the_head_has_a_token_for_the_api_server(case: str) -> None:
    for name, template in pods(case):
        assert template["spec"]["automountServiceAccountToken"] is name.endswith("/head")


@pytest.mark.parametrize("case", [each for each in CASES if each != "everything"])
def test_no_rights_beyond_the_namespace(case: str) -> None:
    kinds = {each["kind"] for each in charts.render(CASES[case])}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def test_rights_are_asked_for_only_where_they_are_used() -> None:
    budget = charts.merged(charts.MODEL, {"autoscaling": {"clusterBudget": {"enabled": True}}})
    objects = charts.render(budget)
    assert not [each for each in objects if each["kind"].startswith("Cluster")]
    [subject] = charts.only(objects, "RoleBinding")["subjects"]
    head = charts.pod_templates(objects)["RayService/baton/head"]
    assert subject["name"] == head["spec"]["serviceAccountName"]


@pytest.mark.parametrize("case", [each for each in CASES if each != "external"])
def test_each_pod_has_exactly_one_policy_for_both_ways(case: str) -> None:
    objects = charts.render(CASES[case])
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    for name, template in charts.pod_templates(objects).items():
        found = [each for each in policies if selects(each["spec"]["podSelector"], template["metadata"]["labels"])]
        assert len(found) == 1, name
        assert found[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def selects(selector: charts.Manifest, labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def allows(rules: list[charts.Manifest], way: str, labels: dict[str, str], port: int | str) -> bool:
    """Whether rules of a policy let a connection from or to a pod of the release through at this port."""
    for rule in rules:
        peers = rule.get(way)
        ports = rule.get("ports")
        if peers is not None and not any(
            "namespaceSelector" not in peer and selects(peer["podSelector"], labels)
            for peer in peers
            if "podSelector" in peer
        ):
            continue
        if ports is None or any(covers(each, port) for each in ports):
            return True
    return False


def covers(entry: dict[str, Any], port: int | str) -> bool:
    """Whether an entry of a policy's ports has this TCP port."""
    if entry.get("protocol", "TCP") != "TCP":
        return False
    first = entry["port"]
    if isinstance(first, int) and isinstance(port, int):
        return first <= port <= int(entry.get("endPort", first))
    return bool(first == port)


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
def test_policies_let_through_the_flows_that_there_are(flow: tuple[str, str, int | str, int | str]) -> None:
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
            each["spec"] for each in charts.render({**charts.MODEL, **values}) if each["kind"] == "NetworkPolicy"
        ]
        labels = {**own, "app.kubernetes.io/component": component}
        [policy] = [each for each in policies if selects(each["podSelector"], labels)]
        lets_in = any(
            PROMETHEUS in rule.get("from", [PROMETHEUS])
            and any(covers(each, port) for each in rule.get("ports", [{"port": port}]))
            for rule in policy["ingress"]
        )
        assert lets_in is expected


def test_notes_say_when_prometheus_may_be_shut_out() -> None:
    monitor = {"monitoring": {"serviceMonitor": {"enabled": True}}}
    clients = {"networkPolicy": {"clients": [PROMETHEUS]}}
    peers = {"networkPolicy": {"monitoring": [PROMETHEUS]}}
    for values, told in (((monitor,), False), ((monitor, clients), True), ((monitor, clients, peers), False)):
        notes = charts.render_files(charts.merged(charts.MODEL, *values))["baton/templates/NOTES.txt"]
        assert ("Prometheus reaches the routers only" in notes) is told


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
def test_a_mirrors_port_is_let_through(endpoint: str, ports: list[int]) -> None:
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
def test_only_who_downloads_reaches_the_hub(cache: dict[str, Any], asking: set[str]) -> None:
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


@pytest.mark.parametrize("case", [each for each in CASES if each != "external"])
def test_names_are_asked_for_at_the_ports_of_dns_where_anybody_is_asked(case: str) -> None:
    """Those of the servers' pods too: a policy sees where a connection really goes, at OpenShift 5353."""
    dns = {"ports": [{"port": port, "protocol": name} for port in (53, 5353) for name in ("UDP", "TCP")]}
    for each in charts.render(CASES[case]):
        if each["kind"] == "NetworkPolicy" and each["spec"]["egress"]:
            assert dns in each["spec"]["egress"], each["metadata"]["name"]


def test_only_workers_see_gpus() -> None:
    """The image asks for all that a node has."""
    objects = charts.render(charts.MODEL)
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    blind = set()
    for template in charts.pod_templates(objects).values():
        blind |= {each["name"] for each in charts.containers(template) if void in each.get("env", ())}
    assert blind == {"router", "fetch", "ray-head", "handover"}
    cluster = charts.only(objects, "RayService")["spec"]["rayClusterConfig"]
    assert void in cluster["autoscalerOptions"]["env"]
    assert cluster["headGroupSpec"]["resources"] == {"CPU": "0", "GPU": "0"}


def test_a_foreign_pod_reaches_no_worker() -> None:
    policies = [each["spec"] for each in charts.render(charts.MODEL) if each["kind"] == "NetworkPolicy"]
    foreign = {"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/instance": "other"}
    for policy in policies:
        for port in (6379, 8265, 40000, "redis", "gcs", "dashboard"):
            assert not allows(policy["ingress"], "from", {**foreign, "app.kubernetes.io/component": "router"}, port)


@pytest.mark.parametrize("model", ["bundled", "/models/x"])
def test_a_model_that_is_there_needs_no_way_out(model: str) -> None:
    objects = charts.render({"model": model})
    for each in objects:
        if each["kind"] == "NetworkPolicy" and not each["metadata"]["name"].endswith("-head"):
            assert not [rule for rule in each["spec"]["egress"] if "ipBlock" in str(rule)]


def test_the_ports_that_policies_let_through_are_those_that_pods_use() -> None:
    ports = {"ray": {"ephemeralPorts": {"first": 20000, "last": 20999}}}
    objects = charts.render(charts.merged(charts.MODEL, ports))
    template = charts.pod_templates(objects)["RayService/baton/decode"]
    assert template["spec"]["securityContext"]["sysctls"] == [
        {"name": "net.ipv4.ip_local_port_range", "value": "20000 20999"}
    ]
    rules = charts.only(objects, "NetworkPolicy", "baton-workers")["spec"]["ingress"]
    assert {"port": 20000, "endPort": 20999} in rules[0]["ports"]


def test_images_are_taken_by_digest_where_there_is_one() -> None:
    digest = "sha256:" + "1" * 64
    values = {"image": {"repository": "r.example.com/baton", "digest": digest}, "redis": {"image": {"digest": digest}}}
    for name, template in charts.pod_templates(charts.render({**charts.MODEL, **values})).items():
        assert all(each["image"].endswith(f"@{digest}") for each in charts.containers(template)), name


def test_ray_takes_orders_with_a_token_only() -> None:
    service = charts.only(charts.render(charts.MODEL), "RayService")
    assert service["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}

"""The chart renders to objects that Kubernetes and the operators take, for every example and version."""

import re
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from baton.__main__ import COMMANDS
from tests.helm import charts
from tests.helm.cases import CASES
from tests.helm.schema import schemas
from tests.helm.workers import kuberay_rules
from tests.marks import each_value, slow_except

KUBE_VERSIONS = tuple(f"v1.{minor}.0" for minor in range(30, 37))
REDIS = {"redis-password": "x"}
GOLDEN = Path(__file__).parent / "golden"


@each_value
@pytest.mark.parametrize("kube_version", slow_except(KUBE_VERSIONS, {KUBE_VERSIONS[0], KUBE_VERSIONS[-1]}))
@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid_by_its_schema(case: str, kube_version: str) -> None:
    objects = charts.render(CASES[case], kube_version=kube_version)
    assert len(objects) > 8
    for each in objects:
        schemas.check(each, kube_version)
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES)
def test_the_operator_accepts_the_ray_service(case: str) -> None:
    assert kuberay_rules.faults(charts.only(charts.render(CASES[case]), "RayService")) == []


def test_the_copied_operator_rules_find_violations() -> None:
    """Each rule finds what it is for."""
    service = charts.only(charts.render(charts.MODEL), "RayService")
    breaks: list[tuple[str, Any]] = [
        ("too long", lambda it: it["metadata"].update(name="b" * 48)),
        ("DNS-1035", lambda it: it["metadata"].update(name="1b")),
        ("in rayStartParams and in", lambda it: _group(it)["rayStartParams"].update({"num-cpus": "1"})),
        ("restartPolicy Never", lambda it: _group(it)["template"]["spec"].update(restartPolicy="Always")),
        ("more than maxReplicas", lambda it: _group(it).update(minReplicas=99)),
        ("2.52.0", lambda it: it["spec"]["rayClusterConfig"].update(rayVersion="2.51.0")),
        ("one name", lambda it: _group(it).update(groupName="decode")),
        ("none of them serve", lambda it: _head(it)["ports"].pop()),
        ("REDIS_USERNAME", lambda it: _head(it)["env"].append({"name": "REDIS_USERNAME", "value": "x"})),
        ("RAY_REDIS_ADDRESS", lambda it: _head(it)["env"].append({"name": "RAY_REDIS_ADDRESS", "value": "x"})),
        ("cannot be suspended", lambda it: _group(it).update(suspend=True)),
        ("no label's value", lambda it: _group(it)["labels"].update(pool="a b")),
        ("belongs into gcsFault", lambda it: _cluster(it)["headGroupSpec"]["rayStartParams"].update(REDIS)),
        ("of its own", lambda it: _cluster(it).update(upgradeStrategy={"type": "Recreate"})),
        ("is none", lambda it: it["spec"]["upgradeStrategy"].update(type="Recreate")),
        ("RayClusters alone", lambda it: _cluster(it)["authOptions"].update(enableK8sTokenAuth=True)),
        ("given twice", lambda it: _head(it)["env"].append({"name": "RAY_enable_autoscaler_v2", "value": "1"})),
    ]
    for words, spoil in breaks:
        spoilt = deepcopy(service)
        spoil(spoilt)
        assert any(words in fault for fault in kuberay_rules.faults(spoilt)), words


def _cluster(service: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = service["spec"]["rayClusterConfig"]
    return spec


def _head(service: dict[str, Any]) -> dict[str, Any]:
    spec = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    container: dict[str, Any] = spec["containers"][0]
    return container


def test_a_redis_password_of_the_head_is_refused_with_fault_tolerance_only() -> None:
    for case, words in (("default", []), ("everything", ["the head's REDIS_PASSWORD is the operator's own"])):
        service = charts.only(charts.render(CASES[case]), "RayService")
        _head(service)["env"].append({"name": "REDIS_PASSWORD", "value": "x"})
        assert kuberay_rules.faults(service) == words


def _group(service: dict[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    return group


def test_an_unknown_kind_and_an_unknown_field_fail() -> None:
    with pytest.raises(schemas.UnknownKind, match="Gadget"):
        schemas.check({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "x"}}, "v1.34.0")
    with pytest.raises(schemas.UnknownKind):
        schemas.check({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "x"}}, "v1.34.0")
    objects = charts.render(CASES["everything"])
    for kind, path in (
        ("Deployment", ("spec", "template", "spec", "containers", 0)),
        ("RayService", ("spec", "rayClusterConfig", "workerGroupSpecs", 1, "template", "spec", "containers", 0)),
        ("RayService", ("spec", "rayClusterConfig", "workerGroupSpecs", 0)),
        ("NetworkPolicy", ("spec", "egress", 1, "ports", 0)),
        ("ScaledObject", ("spec",)),
    ):
        spoilt = deepcopy(next(each for each in objects if each["kind"] == kind))
        place: Any = spoilt
        for key in path:
            place = place[key]
        place["nonsense"] = 1
        with pytest.raises(schemas.Invalid, match="nonsense"):
            schemas.check(spoilt, "v1.34.0")


@each_value
@pytest.mark.parametrize("kube_version", KUBE_VERSIONS)
@pytest.mark.parametrize("case", ["default", "everything", "tls-monitoring"])
def test_helm_lint_finds_nothing(case: str, kube_version: str) -> None:
    report = helm_python.lint(charts.CHART, CASES[case], strict=True, kube_version=kube_version)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


def test_the_oldest_supported_kubernetes_is_tested() -> None:
    assert charts.chart().metadata["kubeVersion"] == f">={KUBE_VERSIONS[0].removeprefix('v')}-0"


@pytest.mark.parametrize("case", ["default", "cpu", "moe"])
def test_objects_equal_the_golden_list(case: str) -> None:
    """What is installed, and what Serve is told."""
    golden = yaml.safe_load((GOLDEN / f"{case}.yaml").read_text(encoding="utf-8"))
    objects = charts.render(CASES[case])
    names = (f"{each['kind']}/{each['metadata']['name']}" for each in objects)
    assert sorted(re.sub("-fetch-[0-9a-f]{8}$", "-fetch", name) for name in names) == golden["objects"]
    assert charts.serve_config(objects) == golden["serveConfigV2"]


def test_commands_in_the_notes_name_existing_objects() -> None:
    files = charts.render_files(CASES["tls"], name="x", namespace="ns")
    notes = files["baton/templates/NOTES.txt"]
    assert "helm test x -n ns" in notes
    assert "-n ns rollout status deployment/x-baton-router" in notes
    assert "https://127.0.0.1:8000" in notes
    assert "authorization: Bearer" in notes
    assert "plaintext" not in notes
    assert charts.only(charts.render(CASES["tls"], name="x", namespace="ns"), "RayService", "x-baton")


@pytest.mark.parametrize(("case", "nodes"), [("default", 1), ("cpu", 1), ("moe", 1), ("default", 2)])
def test_the_size_suggested_in_the_notes_installs(case: str, nodes: int) -> None:
    over_nodes = {"decode": {"tensorParallelSize": 2, "nodesPerWorker": 2}}
    values = charts.merged(CASES[case], over_nodes if nodes > 1 else {})
    notes = charts.render_files(values)["baton/templates/NOTES.txt"]
    found = re.search(r"--set decode\.maxReplicas=(\d+) ", notes)
    assert found is not None
    charts.render(charts.merged(values, {"decode": {"maxReplicas": int(found[1])}}))
    for status in ("activeServiceStatus", "pendingServiceStatus"):
        assert f"{{.status.{status}.applicationStatuses}}" in notes


def test_the_operator_expects_no_serve_proxy_on_the_head() -> None:
    assert charts.only(charts.render(charts.MODEL), "RayService")["spec"]["excludeHeadPodFromServeSvc"] is True


@pytest.mark.parametrize("case", CASES)
def test_baton_commands_accept_their_options(case: str) -> None:
    """In pods, and in the notes."""
    files = charts.render_files(CASES[case])
    lines = [re.sub(r"\s+", " ", line) for line in files["baton/templates/NOTES.txt"].splitlines()]
    lines = [line.partition("baton ")[2] for line in lines if re.search(r": +baton [a-z]+ --", line)]
    templates = charts.pod_templates(charts.render(CASES[case]))
    for container in (each for template in templates.values() for each in charts.containers(template)):
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [""])
        lines += [" ".join(container["command"][1:])] if container.get("command", [""])[0] == "baton" else []
        lines += [hook[-1].removeprefix("baton ")] if hook[-1].startswith("baton ") else []
    assert len(lines) >= 4
    for line in lines:
        name, *words = line.split()
        assert name in COMMANDS, line
        known = {flag for each in import_module(f"baton.cli.{name}").command.params for flag in each.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_certificates_have_the_required_names() -> None:
    objects = charts.render(CASES["tls"])
    internal = charts.only(objects, "Certificate", "baton-tls")["spec"]
    arguments = charts.serve_config(objects)["applications"][0]["args"]
    assert internal["dnsNames"] == [arguments["tls_server_name"]]
    assert {"server auth", "client auth"} <= set(internal["usages"])
    https = charts.only(objects, "Certificate", "baton-https")["spec"]
    assert {"llm.example.com", "baton-router.serving.svc"} <= set(https["dnsNames"])
    for certificate in (internal, https):
        mounted = [
            volume["secret"]["secretName"]
            for template in charts.pod_templates(objects).values()
            for volume in template["spec"].get("volumes", ())
            if "secret" in volume
        ]
        assert certificate["secretName"] in mounted


def test_a_password_is_in_secrets_only() -> None:
    objects = charts.render(charts.MODEL)
    secret = charts.only(objects, "Secret")
    password = secret["stringData"]["password"]
    assert len(password) == 32
    assert set(secret["stringData"]) == {"password", "url", "address"}
    assert password not in secret["stringData"]["address"]
    # Pods of earlier versions have this one.
    assert secret["stringData"]["url"] == f"redis://:{password}@baton-redis.serving.svc.cluster.local:6379/0"
    assert not [each["kind"] for each in objects if each is not secret and password in yaml.safe_dump(each)]
    another = charts.only(charts.render(charts.MODEL, is_anew=True), "Secret")
    assert another["stringData"]["password"] != password


def test_extra_objects_are_templates() -> None:
    assert charts.only(charts.render(CASES["everything"]), "ConfigMap", "baton-extra")

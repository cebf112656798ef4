"""Definitions of custom resources are read as the API server reads them, rules and defaults included."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import cel
import pytest

from tests.helm import charts
from tests.helm.api_server.client import Client, Refused
from tests.helm.cases import CASES
from tests.helm.clusters import NAMESPACE, cluster
from tests.helm.schema import cel_rules, custom_resources, schemas
from tests.helm.schema.released_crds import fault, fields
from tests.helm.schema.structural_schemas import defaulted, strict

VERSION = "v1.34.0"
Spoil = Callable[[dict[str, Any]], object]

# As a project may release one.
GADGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          description: A gadget.
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              required: [size]
              properties:
                size: {type: integer, format: int32, default: 3}
                port: {x-kubernetes-int-or-string: true}
                note: {type: string, nullable: true}
                free: {type: object, x-kubernetes-preserve-unknown-fields: true}
                empty: {type: object}
                parts:
                  type: array
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [name]
                  items:
                    type: object
                    required: [name]
                    properties:
                      name: {type: string}
                      color:
                        type: string
                        default: red
                        x-kubernetes-validations: [{rule: self == oldSelf, message: a color stays}]
                    x-kubernetes-validations: [{rule: "self.color != self.name"}]
              x-kubernetes-validations:
                - {rule: "!has(self.parts) || size(self.parts) <= self.size", message: too many parts}
    - {name: v0, served: false, storage: false, schema: {openAPIV3Schema: {type: object, properties: {}}}}
"""


def gadget(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": spec}


@pytest.fixture
def schema(tmp_path: Path) -> dict[str, Any]:
    """Of gadgets, from a directory."""
    (tmp_path / "gadgets.yaml").write_text("---\n" + GADGETS + "---\nkind: Namespace\n")
    [definition] = custom_resources.released(tmp_path).values()
    [(api_version, kind, found)] = custom_resources.schemas(definition)
    assert (api_version, kind) == ("example.com/v1", "Gadget")
    return found


def test_a_released_definition_is_read(schema: dict[str, Any]) -> None:
    assert defaulted(schema, gadget(parts=[{"name": "a"}]))["spec"] == {
        "size": 3,
        "parts": [{"name": "a", "color": "red"}],
    }
    closed = strict(schema)["properties"]["spec"]
    assert closed["additionalProperties"] is False
    assert closed["properties"]["empty"]["additionalProperties"] is False
    assert "additionalProperties" not in closed["properties"]["free"]
    assert closed["properties"]["port"] == {"type": ["integer", "string"]}
    assert {"type": "null"} in closed["properties"]["note"]["anyOf"]
    assert "format" not in closed["properties"]["size"]


def test_rules_see_defaults_and_every_item(schema: dict[str, Any]) -> None:
    def broken(**spec: Any) -> list[str]:
        return list(cel_rules.broken(schema, defaulted(schema, gadget(**spec))))

    assert broken(parts=[{"name": "a"}]) == []
    assert broken(size=0, parts=[{"name": "a"}]) == ["spec: too many parts"]
    assert broken(parts=[{"name": "a"}, {"name": "red"}]) == ["spec.parts[1]: self.color != self.name"]


def test_transition_rules_match_items_by_their_keys(schema: dict[str, Any]) -> None:
    def broken(*parts: dict[str, str]) -> list[str]:
        before = defaulted(schema, gadget(parts=[{"name": "a"}, {"name": "b", "color": "blue"}]))
        return list(cel_rules.broken(schema, defaulted(schema, gadget(parts=list(parts))), before))

    assert broken({"name": "b", "color": "blue"}, {"name": "new", "color": "green"}) == []
    assert broken({"name": "b"}) == ["spec.parts[0].color: a color stays"]


@pytest.mark.parametrize("rule", ["isURL(self)", "self + 1 == 2", "1 + 1", "self =="])
def test_a_rule_that_cannot_be_evaluated_is_not_skipped(rule: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        list(cel_rules.broken({"type": "string", "x-kubernetes-validations": [{"rule": rule}]}, "x"))


def test_a_directory_without_definitions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no CustomResourceDefinition"):
        custom_resources.released(tmp_path)


def test_a_release_that_restricts_more_is_a_fault(tmp_path: Path) -> None:
    def compared(change: Spoil) -> tuple[list[str], list[str]]:
        theirs = deepcopy(ours)
        change(theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
        found = list(fields(ours, theirs))
        return [text for each in found if (text := fault(each))], [each.path for each in found if not each.released]

    (tmp_path / "gadgets.yaml").write_text(GADGETS)
    [ours] = custom_resources.released(tmp_path).values()
    spec = "example.com/v1/Gadget spec"
    assert compared(lambda spec: None) == ([], [])
    assert compared(lambda spec: spec["properties"].pop("parts")) == ([], [f"{spec}.parts"])
    assert compared(lambda spec: spec["required"].append("port"))[0] == [
        f"{spec}: port required in the release, but not in ours"
    ]
    assert compared(lambda spec: spec["properties"]["size"].update(type="string"))[0] == [
        f"{spec}.size: of type string in the release, but integer in ours"
    ]
    item = f"{spec}.parts[].name"
    assert compared(lambda spec: spec["properties"]["parts"]["items"]["properties"]["name"].update(enum=["a"]))[0] == [
        f"{item}: one of a in the release, but ours allows more"
    ]


@pytest.mark.parametrize("definition", custom_resources.definitions(), ids=lambda each: str(each["metadata"]["name"]))
def test_every_definition_is_valid(definition: dict[str, Any]) -> None:
    schemas.check(definition, VERSION)
    assert f"{definition['spec']['names']['plural']}.{definition['spec']['group']}" == definition["metadata"]["name"]
    for version in definition["spec"]["versions"]:
        compiled = list(rules_of(version["schema"]["openAPIV3Schema"]))
        assert all(cel.compile(each["rule"]) for each in compiled)


def rules_of(schema: Any) -> list[dict[str, Any]]:
    """All rules of a schema, wherever they stand."""
    if isinstance(schema, list):
        return [rule for each in schema for rule in rules_of(each)]
    if not isinstance(schema, dict):
        return []
    return [*schema.get("x-kubernetes-validations", ()), *(rule for each in schema.values() for rule in rules_of(each))]


BREAKS: list[tuple[str, str, Spoil]] = [
    ("HTTPRoute", "with its port", lambda spec: spec["rules"][0]["backendRefs"][0].pop("port")),
    ("HTTPRoute", "begins with /", lambda spec: spec["rules"][0]["matches"][0]["path"].update(value="v1")),
    ("HTTPRoute", "leads elsewhere", lambda spec: spec["rules"][0]["matches"][0]["path"].update(value="/a/../b")),
    ("HTTPRoute", "does not end", lambda spec: spec["rules"][0]["matches"][0]["path"].update(value="/a/..")),
    ("HTTPRoute", "belongs into none", lambda spec: spec["rules"][0]["matches"][0]["path"].update(value="/a b")),
    (
        "HTTPRoute",
        "no longer than the request",
        lambda spec: spec["rules"][0]["timeouts"].update(request="1s", backendRequest="1m"),
    ),
    ("HTTPRoute", "stands there once", lambda spec: spec["parentRefs"].append(spec["parentRefs"][0])),
    (
        "HTTPRoute",
        "named with its sections",
        lambda spec: spec["parentRefs"].append({**spec["parentRefs"][0], "sectionName": "https"}),
    ),
    ("BackendTLSPolicy", "or a section of it", lambda spec: spec["targetRefs"].append(spec["targetRefs"][0])),
    (
        "BackendTLSPolicy",
        "named or well known",
        lambda spec: spec["validation"].update(wellKnownCACertificates="System"),
    ),
    ("BackendTLSPolicy", "named or well known", lambda spec: spec["validation"].pop("caCertificateRefs")),
    ("RayService", "managedBy is", lambda spec: spec.update(managedBy="me")),
    ("RayService", "managedBy is", lambda spec: spec["rayClusterConfig"].update(managedBy="me")),
]


@pytest.mark.parametrize(("kind", "words", "spoil"), BREAKS)
def test_each_rule_finds_its_violation(kind: str, words: str, spoil: Spoil) -> None:
    spoilt = deepcopy(charts.only(charts.render(CASES["tls"]), kind))
    schemas.check(spoilt, VERSION)
    spoil(spoilt["spec"])
    with pytest.raises(schemas.Invalid, match=words):
        schemas.check(spoilt, VERSION)


def test_the_server_enforces_the_definitions_rules(tmp_path: Path) -> None:
    objects = charts.render(charts.MODEL)
    account, service = charts.only(objects, "ServiceAccount", "baton-head"), charts.only(objects, "RayService")
    service["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    with cluster(tmp_path) as server, Client(server) as client:
        names = {each["metadata"]["name"] for each in client.list("CustomResourceDefinition", "")}
        assert names == {each["metadata"]["name"] for each in custom_resources.definitions()}
        client.create(account, NAMESPACE)
        client.create(service, NAMESPACE)
        patch = {"spec": {"managedBy": "ray.io/kuberay-operator"}}
        with pytest.raises(Refused, match="managedBy cannot be changed"):
            client.patch("RayService", "baton", patch, namespace=NAMESPACE)
        client.patch("RayService", "baton", {"spec": {"rayClusterDeletionDelaySeconds": 9}}, namespace=NAMESPACE)
        assert client.get("RayService", "baton", NAMESPACE)["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"

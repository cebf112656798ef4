"""What routers' pods get, what sizes them, and what leads clients to them."""

from typing import Any

import pytest

from tests.helm import charts
from tests.helm.cases import CASES
from tests.helm.label_selectors import selects
from tests.helm.pods import main_container, rendered

KEDA = {"enabled": True, "prometheusAddress": "http://prometheus:9090", "scrapedElsewhere": True}


def test_a_routers_probes_use_its_endpoints() -> None:
    container = main_container(
        charts.pod_templates(rendered({"router": {"startupSeconds": 301}}))["Deployment/baton-router"]
    )
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/health", "readinessProbe": "/ready", "livenessProbe": "/health"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 301
    https = main_container(charts.pod_templates(charts.render(CASES["tls"]))["Deployment/baton-router"])
    assert https["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


@pytest.mark.parametrize(
    ("values", "kind", "replicas"),
    [
        ({}, "HorizontalPodAutoscaler", None),
        ({"router": {"autoscaling": {"enabled": False}, "replicas": 3}}, None, 3),
        ({"router": {"autoscaling": {"enabled": False}}, "keda": KEDA}, "ScaledObject", None),
    ],
)
def test_exactly_one_object_sizes_the_routers(values: dict[str, Any], kind: str | None, replicas: int | None) -> None:
    objects = rendered(values)
    scalers = [each for each in objects if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
    assert [each["kind"] for each in scalers] == ([kind] if kind else [])
    assert charts.only(objects, "Deployment", "baton-router")["spec"].get("replicas") == replicas
    for each in scalers:
        assert each["spec"]["scaleTargetRef"]["name"] == "baton-router"


def test_ingress_and_routes_use_the_routers_ports() -> None:
    objects = charts.render(charts.merged(CASES["tls"], {"router": {"grpc": True, "service": {"port": 80}}}))
    service = charts.only(objects, "Service", "baton-router")
    router = charts.pod_templates(objects)["Deployment/baton-router"]
    assert selects({"matchLabels": service["spec"]["selector"]}, router["metadata"]["labels"])
    ports = {each["name"]: each["containerPort"] for each in main_container(router)["ports"]}
    assert ports == {"http": 8000, "grpc": 9000}
    assert {each["targetPort"] for each in service["spec"]["ports"]} == set(ports)
    protocols = {each["name"]: each.get("appProtocol") for each in service["spec"]["ports"]}
    assert protocols == {"http": "https", "grpc": None}  # mutual TLS is no h2c
    [path] = charts.only(objects, "Ingress")["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "baton-router", "port": {"name": "http"}}
    [rule] = charts.only(objects, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "baton-router", "port": 80}]
    policy = charts.only(objects, "BackendTLSPolicy")["spec"]
    assert policy["targetRefs"] == [
        {"group": "", "kind": "Service", "name": "baton-router", "sectionName": service["spec"]["ports"][0]["name"]}
    ]
    others = [each for each in charts.pod_templates(objects).values() if each is not router]
    assert not any(selects({"matchLabels": service["spec"]["selector"]}, each["metadata"]["labels"]) for each in others)


def test_ingress_and_gateway_use_https_to_the_routers() -> None:
    tls = {"tls": {"https": {"enabled": True, "existingSecret": "cert"}}}
    route = {"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]}}
    policy = charts.only(rendered(tls, route), "BackendTLSPolicy")["spec"]["validation"]
    assert policy == {"hostname": "baton-router.serving.svc", "wellKnownCACertificates": "System"}
    own = {"httpRoute": {"backendTLS": {"caConfigMap": "ca", "hostname": "llm.example.com"}}}
    policy = charts.only(rendered(tls, route, own), "BackendTLSPolicy")["spec"]["validation"]
    assert policy["hostname"] == "llm.example.com"
    assert policy["caCertificateRefs"] == [{"group": "", "kind": "ConfigMap", "name": "ca"}]
    for values in ((route,), (tls,), (tls, route, {"httpRoute": {"backendTLS": {"enabled": False}}})):
        assert not [each for each in rendered(*values) if each["kind"] == "BackendTLSPolicy"]
    ingress = {"ingress": {"enabled": True}}
    annotation = {"traefik.ingress.kubernetes.io/service.serversscheme": "https"}
    for told in ({"ingress": {"backendTLSElsewhere": True}}, {"router": {"service": {"annotations": annotation}}}):
        assert charts.only(rendered(tls, ingress, told), "Ingress")
    assert charts.only(rendered(ingress), "Ingress")


def test_the_routers_certificate_has_the_gateways_hostname() -> None:
    objects = charts.render(CASES["tls"])
    asked = charts.only(objects, "BackendTLSPolicy")["spec"]["validation"]["hostname"]
    assert asked in charts.only(objects, "Certificate", "baton-https")["spec"]["dnsNames"]


def test_a_router_restarts_when_its_file_changes() -> None:
    before, after = (
        charts.pod_templates(rendered(values))["Deployment/baton-router"]["metadata"]["annotations"]
        for values in ({}, {"router": {"config": {"maxQueueWaitS": 1}}})
    )
    assert before != after

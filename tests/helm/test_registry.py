"""The registry: the chart's own Redis, or another."""

from typing import Any

from tests.helm import charts
from tests.helm.cases import CASES
from tests.helm.pods import POOLS, main_container, rendered, worker


def test_an_existing_password_is_used_by_all_components() -> None:
    values = {"head": {"faultTolerance": {"enabled": True}}, "redis": {"persistence": {"enabled": True}}}
    objects = rendered(values, {"redis": {"auth": {"existingSecret": "mine"}}})
    assert not [each for each in objects if each["kind"] == "Secret"]
    templates = charts.pod_templates(objects)
    [password] = main_container(templates["Deployment/baton-redis"])["env"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "password"}
    env = {each["name"]: each for each in main_container(templates["Deployment/baton-router"])["env"]}
    assert env["BATON_REGISTRY"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "url"}
    for name in ("head", *POOLS):
        volumes = {each["name"]: each for each in worker(objects, name)["spec"]["volumes"]}
        assert volumes["registry"]["secret"]["secretName"] == "mine"
        assert volumes["registry"]["secret"]["items"] == [{"key": "url", "path": "url"}]
    cluster = charts.only(objects, "RayService")["spec"]["rayClusterConfig"]
    head = cluster["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]
    assert head == {"name": "mine", "key": "password"}
    assert rendered(values, {"redis": {"auth": {"existingSecret": "mine"}}}, is_anew=True) == objects


def test_redis_restarts_with_a_new_password() -> None:
    """Rendered without the cluster, which knows the one that there is, each time is another."""

    def checksum(values: dict[str, Any]) -> str:
        template = charts.pod_templates(rendered({"redis": values}, is_anew=True))["Deployment/baton-redis"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) != checksum({})
    mine = {"auth": {"existingSecret": "mine"}}
    assert checksum(mine) == checksum(mine)
    assert checksum(mine) != checksum({**mine, "persistence": {"enabled": True}})
    assert checksum(mine) != checksum({"auth": {"existingSecret": "other"}})


def test_an_external_registry_is_used() -> None:
    external = {"redis": {"enabled": False, "external": {"existingSecret": "cache", "key": "uri"}}}
    objects = rendered(external)
    assert not [each for each in objects if each["kind"] == "Secret"]
    env = {
        each["name"]: each for each in main_container(charts.pod_templates(objects)["Deployment/baton-router"])["env"]
    }
    assert env["BATON_REGISTRY"]["valueFrom"]["secretKeyRef"] == {"name": "cache", "key": "uri"}
    volumes = {each["name"]: each for each in worker(objects)["spec"]["volumes"]}
    assert volumes["registry"]["secret"]["items"] == [{"key": "uri", "path": "url"}]
    url = charts.only(charts.render(CASES["external"]), "Secret")
    assert url["stringData"]["url"] == "rediss://cache.example.com:6380/0"

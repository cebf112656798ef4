"""The registry: the chart's own Redis, or another."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError

from baton.deployment.local.ports import free_ports
from baton.settings.registry_url import parse_registry_url
from tests.helm import charts
from tests.helm.cases import CASES
from tests.helm.pods import POOLS, main_container, rendered, worker
from tests.redis_server import HOST, require_redis_server

ONCE = Retry(NoBackoff(), 0)  # the client's own retries wait longer each time


def test_an_existing_password_is_used_by_all_components() -> None:
    values = {"head": {"faultTolerance": {"enabled": True}}, "redis": {"persistence": {"enabled": True}}}
    objects = rendered(values, {"redis": {"auth": {"existingSecret": "mine"}}})
    assert not [each for each in objects if each["kind"] == "Secret"]
    templates = charts.pod_templates(objects)
    password, previous = main_container(templates["Deployment/baton-redis"])["env"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "password"}
    assert previous["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "previous-password", "optional": True}
    env = {each["name"]: each for each in main_container(templates["Deployment/baton-router"])["env"]}
    assert env["BATON_REGISTRY"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "url"}
    for name in ("head", *POOLS):
        volumes = {each["name"]: each for each in worker(objects, name)["spec"]["volumes"]}
        assert volumes["registry"]["secret"]["secretName"] == "mine"
        assert volumes["registry"]["secret"]["items"] == [{"key": key, "path": key} for key in ("url", "password")]
    cluster = charts.only(objects, "RayService")["spec"]["rayClusterConfig"]
    head = cluster["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]
    assert head == {"name": "mine", "key": "password"}
    assert rendered(values, {"redis": {"auth": {"existingSecret": "mine"}}}, is_anew=True) == objects


async def test_redis_accepts_the_password_and_the_previous_one(tmp_path: Path) -> None:
    """By the container's own command. As long as a password is being changed, some clients still have the old one."""
    objects = rendered()
    container = main_container(charts.pod_templates(objects)["Deployment/baton-redis"])
    [config] = charts.only(objects, "ConfigMap", "baton-redis")["data"].values()
    file = tmp_path / "redis.conf"
    for old, passwords in (("", ("new",)), ("o ld", ("new", "o ld"))):
        port = free_ports(HOST, 1)[0]
        own = f"bind {HOST}\nport {port}\ndir {tmp_path}\n"
        file.write_text(config.replace("bind * -::*\n", own).replace("dir /data\n", ""), encoding="utf-8")
        *shell, script = container["command"]
        script = script.replace("redis-server", str(require_redis_server())).replace("/etc/redis/redis.conf", str(file))
        env = {"REDISCLI_AUTH": "new", **({"PREVIOUS_PASSWORD": old} if old else {})}
        process = await asyncio.create_subprocess_exec(*shell, script, env=env, stdout=asyncio.subprocess.DEVNULL)
        try:
            for password in passwords:
                await wait_accepted(port, password)
            for password in {"", "o ld", "other"} - set(passwords):
                async with Redis(host=HOST, port=port, password=password or None, retry=ONCE) as client:
                    with pytest.raises(AuthenticationError):
                        await client.set("a", "b")
        finally:
            process.kill()
            await process.wait()


async def wait_accepted(port: int, password: str) -> None:
    """Return once a server accepts a write with this password."""
    async with asyncio.timeout(20), Redis(host=HOST, port=port, password=password, retry=ONCE) as client:
        while True:
            try:
                assert await client.set("a", "b")
                return
            except RedisConnectionError:
                await asyncio.sleep(0.02)


def test_a_password_may_change_without_a_restart_of_routers_and_workers() -> None:
    """The URL names the file of the Secret's volume, which Kubernetes updates."""
    objects = rendered()
    url = parse_registry_url(charts.only(objects, "Secret")["stringData"]["address"])
    assert url.password is None
    assert url.password_file is not None
    folder, name = url.password_file.rsplit("/", 1)
    for each in ("Deployment/baton-router", *(f"RayService/baton/{pool}" for pool in ("head", *POOLS))):
        template = charts.pod_templates(objects)[each]
        mount = {"name": "registry", "mountPath": folder, "readOnly": True}  # not by subPath, which is never updated
        assert mount in main_container(template)["volumeMounts"]
        [volume] = [volume for volume in template["spec"]["volumes"] if volume["name"] == "registry"]
        assert volume["secret"]["items"] == [{"key": "address", "path": "url"}, {"key": "password", "path": name}]
        first, second = (charts.pod_templates(rendered(is_anew=True))[each] for _ in range(2))
        assert first == second  # with another password


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

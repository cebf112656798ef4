"""What the chart has pods do, done by real processes: Redis, `baton fetch`, Serve, a router, the test, a drain.

Only files' places are others, for no containers mount them here.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm import charts
from tests.integration.on_ray.ray_cluster import RayCluster, ray_cluster
from tests.integration.router_process import RouterProcess, router_process
from tests.integration.workers_view import workers
from tests.redis_server import HOST, RedisServer

pytestmark = pytest.mark.slow

HEAD, NODES = "127.0.0.2", {"prefill": "127.0.0.3", "decode": "127.0.0.4"}
BIN = Path(sys.executable).parent
REGISTRY = "/etc/baton/registry/url"
SETTINGS = "/etc/baton/scaling/settings.yaml"
DEADLINE_S = 90.0


async def run(command: list[str], env: Mapping[str, str]) -> str:
    """What a container's command says; it must end well."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, env={**os.environ, "PATH": path, **env}
    )
    output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def wait_states(router: RouterProcess, expected: list[tuple[str, str]]) -> None:
    """Returns once these are all workers: each with its role and state. One that has just come has no role yet."""
    async with asyncio.timeout(DEADLINE_S):
        while sorted((str(each["role"]), each["state"]) for each in await workers(router.url)) != sorted(expected):
            await asyncio.sleep(0.1)


def configured(directory: Path, objects: list[charts.Manifest]) -> RedisServer:
    """The chart's Redis, with the chart's configuration and password."""
    directory.mkdir()
    file = directory / "redis.conf"
    text: str = charts.only(objects, "ConfigMap", "baton-redis")["data"]["redis.conf"]
    file.write_text(text.replace("dir /data", f"dir {directory}"))
    password = charts.only(objects, "Secret")["stringData"]["password"]
    return RedisServer(directory, "--requirepass", password, configuration=file)


async def join(ray: RayCluster, service: charts.Manifest) -> None:
    """A node for each worker group, with the group's labels, all at once."""
    labels = {
        group["groupName"]: ",".join(f"{key}={value}" for key, value in group["labels"].items())
        for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    }
    await asyncio.gather(*(ray.join(NODES[name], f"--labels={each}") for name, each in labels.items()))


POOLS: dict[str, dict[str, Any]] = {
    "single workers": {},
    "a group": {"decode": {"expertParallelSize": 2, "minReplicas": 2, "maxReplicas": 2, "replicasPerPod": 2}},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pools", POOLS)
async def test_the_charts_commands_and_files_start_a_cluster(tmp_path: Path, pools: str) -> None:
    values = {"modelCache": {"mountPath": str(tmp_path / "models")}, "engine": {"dtype": "float32"}, **POOLS[pools]}
    objects = charts.render(charts.merged(charts.example("cpu"), values))
    service, secret = charts.only(objects, "RayService"), charts.only(objects, "Secret")
    num_decodes = POOLS[pools].get("decode", {}).get("minReplicas", 1)
    worker = charts.pod_templates(objects)["RayService/baton/decode"]
    await run(charts.containers(worker)[0]["command"], {})
    assert (tmp_path / "models" / "baton-bundled" / "model.safetensors").is_file()

    redis = configured(tmp_path / "redis", objects)
    await redis.start()
    url = f"redis://:{secret['stringData']['password']}@{HOST}:{redis.port}/0"
    registry = tmp_path / "url"
    registry.write_text(url)
    settings = tmp_path / "settings.yaml"
    settings.write_text(charts.only(objects, "ConfigMap", "baton-scaling")["data"]["settings.yaml"])
    config = service["spec"]["serveConfigV2"].replace(REGISTRY, str(registry)).replace(SETTINGS, str(settings))
    serve = yaml.safe_load(config)
    router_file = tmp_path / "router.yaml"
    router_file.write_text(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    flags = ("--config", str(router_file), "--host", HOST, "--port", "0", "--registry", url)
    try:
        async with (
            ray_cluster(HEAD, {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}) as ray,
            router_process(tmp_path, *flags, module=("baton", "router")) as router,
        ):
            await join(ray, service)
            await ray.deploy(serve)
            try:
                await wait_states(router, [("prefill", "ready"), *[("decode", "ready")] * num_decodes])
            except TimeoutError as error:
                raise AssertionError(ray.logs()) from error
            found = {each["role"]: each["address"].rpartition(":")[0] for each in await workers(router.url)}
            assert found == NODES  # each on its own group's node

            test = charts.only(objects, "Pod")["spec"]["containers"][0]
            env = {each["name"]: each["value"] for each in test["env"]}
            said = await run(test["command"], {**env, "URL": router.url, "TIMEOUT_S": "30"})
            assert "tokens went from prefill-" in said

            [*shell, command] = worker["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            said = await run([*shell, command.replace(REGISTRY, str(registry))], {"POD_IP": NODES["decode"]})
            assert said.startswith("decode-")
            assert said.endswith("is drained\n")
            await wait_states(router, [("prefill", "ready"), *[("decode", "drained")] * num_decodes])
            logs = ray.logs()
            assert "policy_kwargs" not in logs
            assert "planning failed with" not in logs
    finally:
        await redis.kill()

"""What Serve and Ray are told goes together, and is what our own code and Ray's take."""

from pathlib import Path

import pytest

from baton.deployment.local.cluster_config import engine_options
from baton.deployment.ray.scaling import POOLS
from baton.router.config import RouterConfig
from baton.settings.config_file import load
from baton.settings.options import options_of
from tests.helm import charts
from tests.helm.application import ray_cluster, settings_of, snake
from tests.helm.cases import CASES

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

import ray
from ray.serve.schema import ServeDeploySchema


@pytest.mark.parametrize("case", CASES)
def test_serve_and_the_application_accept_the_config(case: str) -> None:
    objects = charts.render(CASES[case])
    config = charts.serve_config(objects)
    ServeDeploySchema.model_validate(config)
    settings = settings_of(objects)
    settings.check()
    assert not settings.has_router
    assert [settings.has(role) for role in ("prefill", "decode", "both")] == [True, True, False]
    [application] = config["applications"]
    assert [each["name"] for each in application["deployments"]] == list(POOLS.both())


@pytest.mark.parametrize("drain_s", [1, 30, 300])
def test_every_shutdown_has_more_time_than_the_one_it_waits_for(drain_s: int) -> None:
    values = {"drainTimeoutSeconds": drain_s, "router": {"preStopSleepSeconds": 60}}
    objects = charts.render(charts.merged(charts.MODEL, values))
    settings = settings_of(objects)
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        serve_s = settings.shutdown_timeout_s(group["groupName"])
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > serve_s > drain_s
        [_, _, command] = group["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert f"--timeout-s {drain_s}" in command
    router = charts.only(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]
    sleep_s = router["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert router["terminationGracePeriodSeconds"] > sleep_s + drain_s >= 60


def test_options_have_batons_names() -> None:
    """What the values can say of engines and routers, our code knows by the same name."""
    # The chart's own, what follows from both pools' ranks, and what is known only where a pod runs.
    engine = set(engine_options()) - {"device", "kv_shards", "cores"}
    schema = charts.chart().schema
    assert schema is not None
    told = {snake(name) for name in schema["$defs"]["engine"]["properties"]}
    adapters = {"enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype"}  # in `lora`
    assert told | adapters == engine
    router = {snake(name) for name in schema["properties"]["router"]["properties"]["config"]["properties"]}
    assert router <= set(options_of(RouterConfig))
    values = {
        "engine": {"maxModelLen": 4096, "kvCacheMemoryBytes": "4GiB", "enablePrefixCaching": False},
        "decode": {"engine": {"maxNumSeqs": 7, "numThreads": 3}},
    }
    settings = settings_of(charts.render(charts.merged(charts.MODEL, values)))
    assert settings.cluster.engine["prefill"]["kv_cache_memory_bytes"] == 4 << 30
    assert settings.cluster.engine["prefill"]["enable_prefix_caching"] is False
    assert "max_num_seqs" not in settings.cluster.engine["prefill"]
    assert settings.cluster.engine["decode"]["max_num_seqs"] == 7
    assert settings.cluster.engine["decode"]["max_model_len"] == 4096


def test_a_fault_tolerant_head_has_its_own_redis() -> None:
    address = {"head": {"faultTolerance": {"enabled": True, "redisAddress": "gcs.example.com:6390"}}}
    objects = charts.render(charts.merged(charts.MODEL, address))
    options = ray_cluster(objects)["spec"]["gcsFaultToleranceOptions"]
    assert options == {"redisAddress": "gcs.example.com:6390"}
    egress = charts.only(objects, "NetworkPolicy", "baton-head")["spec"]["egress"]
    assert any(rule.get("ports") == [{"port": 6390}] for rule in egress)
    own = ray_cluster(charts.render(CASES["everything"]))["spec"]["gcsFaultToleranceOptions"]
    assert own["redisAddress"] == "baton-redis:6379"
    assert own["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "baton-redis", "key": "password"}


def test_the_ray_version_is_the_tested_one() -> None:
    values = charts.chart().values
    assert values["ray"]["version"] == ray.__version__


def test_kv_stores_are_workers_options() -> None:
    stores = {
        "hostMemoryBytes": "6GiB",
        "disk": "/kv/blocks",
        "diskBytes": 1 << 40,
        "url": "s3://bucket/kv?region=eu",
        "bytes": "1TiB",
        "ttlSeconds": 3600,
        "keyFile": "/kv/key",
    }
    values = {"kvStores": stores, "decode": {"tensorParallelSize": 2}}
    objects = charts.render(charts.merged(charts.MODEL, values))
    worker = settings_of(objects).cluster.worker
    assert worker["kv_host_memory_bytes"] == 6 << 30
    assert {name: worker[name] for name in worker if name.startswith(("kv_disk", "kv_store"))} == {
        "kv_disk": "/kv/blocks",
        "kv_disk_bytes": 1 << 40,
        "kv_store": "s3://bucket/kv?region=eu",
        "kv_store_bytes": 1 << 40,
        "kv_store_ttl_s": 3600,
        "kv_store_key_file": "/kv/key",
    }
    assert not [name for name in settings_of(charts.render(charts.MODEL)).cluster.worker if name.startswith("kv_")]


def test_adapters_are_options_of_engines_and_routers(tmp_path: Path) -> None:
    lora = {"enabled": True, "modules": ["sql=/adapters/sql"], "dir": "/adapters", "maxLoras": 4, "maxLoraRank": 32}
    objects = charts.render(charts.merged(charts.MODEL, {"lora": lora}))
    for engine in settings_of(objects).cluster.engine.values():
        assert (engine["enable_lora"], engine["max_loras"], engine["max_lora_rank"]) == (True, 4, 32)
        assert "max_cpu_loras" not in engine
    file = tmp_path / "router.yaml"
    file.write_text(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    config = load(RouterConfig, file, {"registry": "redis://cache:6379/0"})
    assert (config.enable_lora, config.lora_modules) == (True, ("sql=/adapters/sql",))
    assert config.lora_dir == "/adapters"
    assert "enable_lora" not in settings_of(charts.render(charts.MODEL)).cluster.engine["decode"]


def test_level_and_format_of_logs_reach_all_processes() -> None:
    objects = charts.render(charts.merged(charts.MODEL, {"logLevel": "debug", "logFormat": "json"}))
    settings = settings_of(objects)
    assert settings.log.flags == ["--log-level=debug", "--log-format=json"]
    assert charts.serve_config(objects)["logging_config"] == {"encoding": "JSON"}
    router = charts.only(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]["containers"][0]
    assert router["command"][-4:] == ["--log-level", "debug", "--log-format", "json"]

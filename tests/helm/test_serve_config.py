"""What Serve and Ray are told goes together, and is what our own code and Ray's take."""

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from deployment.cluster_config import engine_options
from deployment.kubernetes.settings import KubernetesSettings
from deployment.ray_arguments import read_ray_settings
from deployment.ray_scaling import POOLS
from deployment.ray_settings import RENDEZVOUS, ROLES, RaySettings
from deployment.scaling_options import read_options
from deployment.serve_misfits import misfits
from router.config import RouterConfig
from router.options import ROUTER_OPTIONS
from rpc.config_file import load
from rpc.options import options_of
from tests.helm import charts
from tests.helm.cases import CASES

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

import ray
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.serve._private.common import DeploymentID
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema


def ray_cluster(objects: list[charts.Manifest]) -> charts.Manifest:
    """The RayCluster that the operator makes of the RayService."""
    service = charts.only(objects, "RayService")
    metadata = {"name": f"{service['metadata']['name']}-abcde", "namespace": service["metadata"]["namespace"]}
    spec = service["spec"]["rayClusterConfig"]
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def settings_of(objects: list[charts.Manifest]) -> RaySettings:
    """The application's settings, as it reads them itself."""
    [application] = charts.serve_config(objects)["applications"]
    return read_ray_settings(application["args"], {})


@pytest.mark.parametrize("case", CASES)
def test_serve_and_the_application_take_it(case: str, tmp_path: Any) -> None:
    objects = charts.render(CASES[case])
    config = charts.serve_config(objects)
    ServeDeploySchema.model_validate(config)
    settings = settings_of(objects)
    settings.check()
    assert not settings.has_router
    assert [settings.has(role) for role in ("prefill", "decode", "both")] == [True, True, False]
    [application] = config["applications"]
    assert [each["name"] for each in application["deployments"]] == list(POOLS.both())


@pytest.mark.parametrize("case", CASES)
def test_the_planner_takes_its_arguments(case: str, tmp_path: Any) -> None:
    objects = charts.render(CASES[case])
    [application] = charts.serve_config(objects)["applications"]
    policy = application.get("autoscaling_policy")
    if policy is None:
        assert case == "external"
        assert all("num_replicas" in each for each in application["deployments"])
        return
    told, settings = policy["policy_kwargs"], tmp_path / "settings.yaml"
    settings.write_text(yaml.safe_dump(charts.scaling_settings(objects)))
    (tmp_path / "url").write_text("redis://cache:6379/0")
    options = read_options({**told, "registry_file": str(tmp_path / "url"), "settings_file": str(settings)})
    assert options.model == application["args"]["served_model_name"]
    least = sum(
        each["autoscaling_config"]["min_replicas"] * limits.gpus_per_replica
        for each, limits in zip(application["deployments"], options.settings.limits.both(), strict=True)
    )
    assert options.settings.budget_gpus >= least
    for deployment in application["deployments"]:
        config = AutoscalingConfig(**deployment["autoscaling_config"])
        assert list(misfits({DeploymentID(deployment["name"]): SimpleNamespace(config=config)}, POOLS)) == []


def test_the_planner_finds_its_settings_where_the_head_has_them() -> None:
    objects = charts.render(charts.MODEL)
    [application] = charts.serve_config(objects)["applications"]
    file = PurePosixPath(application["autoscaling_policy"]["policy_kwargs"]["settings_file"])
    head = charts.pod_templates(objects)["RayService/baton/head"]["spec"]
    [mount] = [each for each in head["containers"][0]["volumeMounts"] if each["mountPath"] == str(file.parent)]
    assert "subPath" not in mount  # such a file never changes
    [volume] = [each for each in head["volumes"] if each["name"] == mount["name"]]
    assert file.name in charts.only(objects, "ConfigMap", volume["configMap"]["name"])["data"]


def test_the_budgets_section_is_that_of_the_pods() -> None:
    objects = charts.render(CASES["everything"])
    [application] = charts.serve_config(objects)["applications"]
    section = application["autoscaling_policy"]["policy_kwargs"]["kubernetes"]
    settings = KubernetesSettings.of(section)
    assert settings.own_namespace_only
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        pods = getattr(settings, group["groupName"])
        labels = group["template"]["metadata"]["labels"]
        assert pods.labels.items() <= labels.items()
        assert str(pods.gpus_per_pod) == group["resources"]["GPU"]
    role = charts.only(objects, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    cluster_role = charts.only(objects, "ClusterRole")
    assert cluster_role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]


@pytest.mark.parametrize("case", CASES)
def test_each_deployment_fits_exactly_one_group(case: str) -> None:
    """By the node types that Ray itself derives from the RayCluster."""
    objects = charts.render(CASES[case])
    types = _derive_autoscaling_config_from_ray_cr(ray_cluster(objects))["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    settings = settings_of(objects)
    [application] = charts.serve_config(objects)["applications"]
    values = charts.chart().merge_values(CASES[case])
    for deployment in application["deployments"]:
        name = deployment["name"]
        options = settings.deployments[name]
        needs = {"CPU": options.replicas.num_cpus, "GPU": settings.num_gpus(name)}
        fitting = [
            type_name
            for type_name, node in types.items()
            if options.label_selector.items() <= node["labels"].items()
            and all(node["resources"].get(resource, 0) >= amount for resource, amount in needs.items())
        ]
        assert fitting == [name]
        node = types[name]
        room = min(node["resources"].get(resource, 0) // amount for resource, amount in needs.items() if amount)
        assert room == values[name]["replicasPerPod"] == options.replicas.max_replicas_per_node
        bounds = deployment.get("autoscaling_config")
        most = bounds["max_replicas"] if bounds else deployment["num_replicas"]
        assert most <= node["max_workers"] * room
        assert node["min_workers"] == 0  # the operator tells a running cluster no other


@pytest.mark.parametrize("case", CASES)
def test_pods_have_what_their_replicas_use(case: str) -> None:
    objects = charts.render(CASES[case])
    values = charts.chart().merge_values(CASES[case])
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        container = group["template"]["spec"]["containers"][0]
        limits, pool = container["resources"]["limits"], values[group["groupName"]]
        assert container["resources"]["requests"] == limits
        assert int(limits["cpu"].removesuffix("m")) >= pool["cpu"] * pool["replicasPerPod"] * 1000
        assert int(limits["memory"].removesuffix("Mi")) > pool["memoryGi"] * pool["replicasPerPod"] * 1024
        assert str(limits.get(values["gpuResource"], 0)) == group["resources"].get("GPU", "0")


@pytest.mark.parametrize("drain_s", [1, 30, 300])
def test_every_end_has_longer_than_what_it_waits_for(drain_s: int) -> None:
    values = {"drainTimeoutSeconds": drain_s, "router": {"preStopSleepSeconds": 60}}
    objects = charts.render({**charts.MODEL, **values})
    settings = settings_of(objects)
    for group in ray_cluster(objects)["spec"]["workerGroupSpecs"]:
        serve_s = settings.shutdown_timeout_s(group["groupName"])
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > serve_s > drain_s
        [_, _, command] = group["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert f"--timeout-s {drain_s}" in command
    router = charts.only(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]
    sleep_s = router["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert router["terminationGracePeriodSeconds"] > sleep_s + drain_s >= 60


@pytest.mark.parametrize("case", CASES)
def test_the_router_takes_its_file(case: str, tmp_path: Any) -> None:
    objects = charts.render(CASES[case])
    text = charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"]
    file = tmp_path / "router.yaml"
    file.write_text(text)
    config = load(RouterConfig, ROUTER_OPTIONS, file, {"registry": "redis://cache:6379/0"})
    [application] = charts.serve_config(objects)["applications"]
    args = application["args"]
    assert (config.model, config.model_name) == (args["model"], args["served_model_name"])
    assert (config.tls_cert, config.tls_server_name) == (args.get("tls_cert"), args.get("tls_server_name"))
    mounts = {
        each["mountPath"]
        for each in charts.only(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]["containers"][0][
            "volumeMounts"
        ]
    }
    for path in (config.tls_cert, config.ssl_certfile, config.api_keys_file):
        assert path is None or path.rpartition("/")[0] in mounts


def test_what_is_promised_reaches_the_router() -> None:
    promised = {"targetTtftMs": 500, "targetTpotMs": 50.5, "trafficWindowS": 30}
    objects = charts.render(charts.merged(charts.MODEL, {"router": {"config": promised}}))
    told = yaml.safe_load(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    assert {snake(name): value for name, value in promised.items()}.items() <= told.items()


def test_options_have_our_own_names() -> None:
    """What the values can say of engines and routers, our code knows by the same name."""
    engine = {name: None for name in engine_options() if name != "device"}
    schema = charts.chart().schema
    assert schema is not None
    told = {snake(name) for name in schema["$defs"]["engine"]["properties"]}
    assert told == set(engine)
    router = {snake(name) for name in schema["properties"]["router"]["properties"]["config"]["properties"]}
    assert router <= set(options_of(RouterConfig, ROUTER_OPTIONS))
    values = {
        "engine": {"maxModelLen": 4096, "kvCacheMemoryBytes": "4GiB", "enablePrefixCaching": False},
        "decode": {"engine": {"maxNumSeqs": 7, "numThreads": 3}},
    }
    settings = settings_of(charts.render({**charts.MODEL, **values}))
    assert settings.cluster.engine["prefill"]["kv_cache_memory_bytes"] == 4 << 30
    assert settings.cluster.engine["prefill"]["enable_prefix_caching"] is False
    assert "max_num_seqs" not in settings.cluster.engine["prefill"]
    assert settings.cluster.engine["decode"]["max_num_seqs"] == 7
    assert settings.cluster.engine["decode"]["max_model_len"] == 4096


def snake(name: str) -> str:
    """camelCase as Python has it."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


def test_a_pools_group_is_the_one_that_the_values_say() -> None:
    objects = charts.render(CASES["experts"])
    settings = settings_of(objects)
    settings.check()
    assert settings.has_rendezvous
    assert [settings.group_size(role) for role in ROLES] == [2, 3, 3]
    told = {"enable_eplb": True, "num_redundant_experts": 2, "eplb_step_interval": 500}
    assert told.items() <= settings.cluster.worker.items()
    [application] = charts.serve_config(objects)["applications"]
    for deployment, least in zip(application["deployments"], (2, 4), strict=True):
        assert deployment["autoscaling_config"]["min_replicas"] == least >= settings.group_size(deployment["name"])
    alone = settings_of(charts.render(charts.MODEL))
    assert not alone.has_rendezvous
    assert "enable_eplb" not in alone.cluster.worker


def test_the_rendezvous_fits_where_decode_workers_are_and_takes_nothing_from_them() -> None:
    objects = charts.render(CASES["experts"])
    settings = settings_of(objects)
    options = settings.deployments[RENDEZVOUS]
    assert (options.replicas.num_cpus, settings.num_gpus(RENDEZVOUS)) == (0, 0)
    types = _derive_autoscaling_config_from_ray_cr(ray_cluster(objects))["available_node_types"]
    fitting = [name for name, node in types.items() if options.label_selector.items() <= node["labels"].items()]
    assert fitting == ["decode"]


def test_pods_of_a_group_reach_each_other_at_any_port() -> None:
    """Where ranks wake each other, gloo's and NCCL's connections, and the rendezvous: all listen at any free port."""
    policy = charts.only(charts.render(CASES["experts"]), "NetworkPolicy", "baton-workers")["spec"]
    pools = {"prefill", "decode"}
    for rules, key in ((policy["ingress"], "from"), (policy["egress"], "to")):
        open_to = [
            set(peer["podSelector"]["matchExpressions"][0]["values"])
            for rule in rules
            if "ports" not in rule
            for peer in rule[key]
        ]
        assert any(pools <= peers for peers in open_to)


GROUP_CHANGES: list[dict[str, Any]] = [
    {"decode": {"expertParallelSize": 2}},
    {"engine": {"dtype": "float32"}},
    {"decode": {"engine": {"blockSize": 32}}},
    {"eplb": {"stepInterval": 100}},
    {"eplb": {"enabled": False}},
]


@pytest.mark.parametrize("change", GROUP_CHANGES)
def test_another_group_is_another_cluster(change: dict[str, Any]) -> None:
    """Serve would change it worker by worker, and the group takes none that differs."""
    before, after = (charts.render(charts.merged(CASES["experts"], each)) for each in ({}, change))
    assert without_replicas(before) != without_replicas(after)
    bounds = {"decode": {"minReplicas": 5, "maxReplicas": 12}}
    assert without_replicas(before) == without_replicas(charts.render(charts.merged(CASES["experts"], bounds)))


BOUNDS: list[dict[str, Any]] = [
    {"decode": {"maxReplicas": 16}},
    {"prefill": {"minReplicas": 2}, "decode": {"minReplicas": 3}},
    {"autoscaling": {"startSeconds": 90, "upscaleDelaySeconds": 1}},
    {"slo": {"ttftSeconds": 0.5}, "autoscaling": {"budgetGPUs": 4}},
]


@pytest.mark.parametrize("change", BOUNDS)
def test_other_bounds_restart_nothing(change: dict[str, Any]) -> None:
    """The operator builds a second cluster for any other change of `rayClusterConfig`; Serve restarts replicas where
    it takes the application for another version.
    """
    before, after = charts.render(charts.MODEL), charts.render({**charts.MODEL, **change})
    assert without_replicas(before) == without_replicas(after)
    old, new = (charts.serve_config(each)["applications"][0] for each in (before, after))
    assert (old, charts.scaling_settings(before)) != (new, charts.scaling_settings(after))
    versions = [get_app_code_version(ServeApplicationSchema.model_validate(each)) for each in (old, new)]
    assert versions[0] == versions[1]
    templates = [charts.pod_templates(each)["Deployment/baton-router"] for each in (before, after)]
    assert templates[0] == templates[1]


def without_replicas(objects: list[charts.Manifest]) -> charts.Manifest:
    """The RayCluster's spec, as the operator compares it."""
    spec = yaml.safe_load(yaml.safe_dump(ray_cluster(objects)["spec"]))
    for group in spec["workerGroupSpecs"]:
        for name in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(name, None)
    assert isinstance(spec, dict)
    return spec


HTTPS = {"enabled": True, "existingSecret": "cert"}
FAILURES: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model: missing"),
    ({"fullnameOverride": "b" * 48}, "has 48 characters"),
    ({"fullnameOverride": "1b"}, "must begin with a letter"),
    ({"prefill": {"minReplicas": 5}}, r"prefill\.minReplicas: 5 is more than maxReplicas"),
    ({"decode": {"replicas": 2}}, r"decode\.replicas: 2, but with autoscaling the size follows the load"),
    (
        {"decode": {"startTimeoutSeconds": 7200}, "autoscaling": {"startTimeoutSeconds": 3600}},
        r"autoscaling\.startTimeoutSeconds: 3600, but a worker of decode may take 7200",
    ),
    ({"decode": {"minReplicas": 0, "maxReplicas": 4}}, "one at the least"),
    ({"autoscaling": {"enabled": False}, "decode": {"replicas": 0}}, "one at the least"),
    ({"decode": {"maxReplicas": 40, "replicasPerPod": 2}}, "need 20 pods, but the worker group has 16"),
    ({"prefill": {"tensorParallelSize": 2}}, r"prefill\.tensorParallelSize: 2, but this chart .* ranks yet"),
    (
        {"decode": {"expertParallelSize": 3, "minReplicas": 2}},
        r"decode\.minReplicas: 2, but the pool's group begins with 3 workers",
    ),
    (
        {"autoscaling": {"enabled": False}, "prefill": {"expertParallelSize": 4, "replicas": 3}},
        r"prefill\.replicas: 3, but the pool's group begins with 4 workers",
    ),
    ({"eplb": {"enabled": True}}, "eplb: each worker has all experts"),
    ({"eplb": {"numRedundantExperts": 8}}, "eplb: each worker has all experts"),
    ({"router": {"config": {"targetTpotMs": 50}}}, "targetTtftMs needs targetTpotMs"),
    ({"decode": {"shmGi": 100}}, "count as the pod's memory"),
    ({"decode": {"extraResources": {"nvidia.com/gpu": 2}}}, "nvidia.com/gpu is set twice"),
    ({"rdma": {"enabled": True}, "prefill": {"extraResources": {"rdma/hca": 2}}}, "rdma/hca is set twice"),
    *(
        ({"head": {"extraEnv": [{"name": name, "value": "x"}]}}, f"head.extraEnv: {name} is the operator's own")
        for name in ("RAY_REDIS_ADDRESS", "REDIS_USERNAME", "RAY_enable_autoscaler_v2")
    ),
    (
        {
            "head": {
                "faultTolerance": {"enabled": True, "redisAddress": "r:1"},
                "extraEnv": [{"name": "REDIS_PASSWORD", "value": "x"}],
            }
        },
        "REDIS_PASSWORD is the operator's own",
    ),
    ({"head": {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}}, "head.extraEnv: NVIDIA_VIS.* twice"),
    ({"router": {"extraEnv": [{"name": "BATON_REGISTRY", "value": "x"}]}}, "router.extraEnv: BATON_REGISTRY is set tw"),
    ({"decode": {"extraEnv": [{"name": "HOME", "value": "/"}]}}, "decode.extraEnv: HOME is set twice"),
    ({"prefill": {"extraEnv": [{"name": "A", "value": "1"}] * 2}}, "prefill.extraEnv: A is set twice"),
    (
        {"rdma": {"enabled": True}, "decode": {"extraEnv": [{"name": "UCX_TLS", "value": "all"}]}},
        "decode.extraEnv: UCX_TLS is set twice",
    ),
    ({"modelCache": {"extraEnv": [{"name": "TMPDIR", "value": "/"}]}}, "modelCache.extraEnv: TMPDIR is set twice"),
    ({"monitoring": {"podMonitor": {"enabled": True}}}, "nobody ask Ray's pods for metrics"),
    (
        {"redis": {"enabled": False, "external": {"url": "redis://x"}, "auth": {"existingSecret": "x"}}},
        "of the chart's own Redis",
    ),
    ({"autoscaling": {"budgetGPUs": 1}}, "the smallest pools need 2"),
    ({"device": "cpu", "autoscaling": {"clusterBudget": {"enabled": True}}}, "it counts GPUs"),
    ({"redis": {"enabled": False}}, "need a registry"),
    ({"redis": {"external": {"url": "redis://x"}}}, "not both"),
    ({"redis": {"enabled": False, "external": {"url": "redis://x", "existingSecret": "y"}}}, "not both"),
    ({"head": {"faultTolerance": {"enabled": True}}}, "a Redis that forgets"),
    (
        {"head": {"faultTolerance": {"enabled": True}}, "redis": {"enabled": False, "external": {"url": "redis://x"}}},
        "redisAddress: missing",
    ),
    ({"head": {"faultTolerance": {"enabled": True, "redisAddress": "r"}}}, "r has no port"),
    ({"modelCache": {"type": "hostPath"}}, "hostPath: missing"),
    ({"modelCache": {"job": {"enabled": True}}}, "it fills a volume that pods share"),
    ({"modelCache": {"fetch": False}}, "must be a path"),
    ({"keda": {"enabled": True}}, "both size the routers"),
    ({"keda": {"enabled": True}, "router": {"autoscaling": {"enabled": False}}}, r"keda\.prometheusAddress: missing"),
    (
        {
            "keda": {"enabled": True, "prometheusAddress": "http://prometheus:9090"},
            "router": {"autoscaling": {"enabled": False}},
        },
        "nothing here has Prometheus read",
    ),
    (
        {
            "keda": {"enabled": True, "prometheusAddress": "http://p", "scrapedElsewhere": True, "minReplicas": 9},
            "router": {"autoscaling": {"enabled": False}},
        },
        "keda: minReplicas is more than maxReplicas",
    ),
    ({"redis": {"enabled": False, "external": {"url": "redis://u:1@cache:6380/0"}}}, "6379, but the URL has 6380"),
    ({"ingress": {"enabled": True}, "tls": {"https": HTTPS}}, "would send them plaintext"),
    (
        {"ingress": {"enabled": True, "annotations": {"a/b": "HTTPS"}}, "tls": {"https": HTTPS}},
        r"nginx\.ingress\.kubernetes\.io/backend-protocol: HTTPS",
    ),
    ({"router": {"autoscaling": {"minReplicas": 9}}}, "minReplicas is more than maxReplicas"),
    ({"auth": {"protectOperations": True}}, "needs auth.apiKeys"),
    ({"auth": {"apiKeys": {"existingSecret": "keys"}}}, "`helm test` needs a key"),
    ({"httpRoute": {"enabled": True}}, "name the Gateway"),
    ({"tls": {"internal": {"enabled": True}}}, "it needs a certificate"),
    ({"tls": {"https": {"certManager": {"enabled": True}}}}, "nobody would use"),
    ({"tls": {"https": {"enabled": True, "certManager": {"enabled": True}}}}, r"issuerRef\.name: missing"),
    (
        {"tls": {"https": {"enabled": True, "existingSecret": "x", "certManager": {"enabled": True}}}},
        "not both",
    ),
]


@pytest.mark.parametrize(("change", "words"), FAILURES)
def test_what_could_not_work_is_told_before_the_install(change: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError, match=words):
        charts.render({**charts.MODEL, **change})


@pytest.mark.parametrize(
    ("missing", "case"),
    [
        ("ray.io/v1/RayService", "everything"),
        ("keda.sh/v1alpha1/ScaledObject", "everything"),
        ("gateway.networking.k8s.io/v1/HTTPRoute", "tls"),
        ("gateway.networking.k8s.io/v1/BackendTLSPolicy", "tls"),
    ],
)
def test_a_missing_operator_is_named(missing: str, case: str) -> None:
    apis = [each for each in charts.APIS if each != missing]
    with pytest.raises(HelmError, match=missing.rpartition("/")[2]):
        charts.render(CASES[case], api_versions=apis)
    unchecked = charts.merged(CASES[case], {"ray": {"checkOperator": False}})
    assert charts.only(charts.render(unchecked, api_versions=[]), "RayService")


def test_a_head_that_may_die_has_a_redis_of_its_own() -> None:
    address = {"head": {"faultTolerance": {"enabled": True, "redisAddress": "gcs.example.com:6390"}}}
    objects = charts.render(charts.merged(charts.MODEL, address))
    options = ray_cluster(objects)["spec"]["gcsFaultToleranceOptions"]
    assert options == {"redisAddress": "gcs.example.com:6390"}
    egress = charts.only(objects, "NetworkPolicy", "baton-head")["spec"]["egress"]
    assert any(rule.get("ports") == [{"port": 6390}] for rule in egress)
    own = ray_cluster(charts.render(CASES["everything"]))["spec"]["gcsFaultToleranceOptions"]
    assert own["redisAddress"] == "baton-redis:6379"
    assert own["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "baton-redis", "key": "password"}


def test_the_ray_version_is_the_one_that_is_tested() -> None:
    values = charts.chart().values
    assert values["ray"]["version"] == ray.__version__

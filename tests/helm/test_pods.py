"""What pods get: probes and ends, devices and memory, the model, and the objects that stand around them."""

from typing import Any

import pytest

from tests.helm import charts
from tests.helm.cases import CASES
from tests.helm.test_security import selects

POOLS = ("prefill", "decode")
KEDA = {"enabled": True, "prometheusAddress": "http://prometheus:9090", "scrapedElsewhere": True}


def rendered(*layers: dict[str, Any]) -> list[charts.Manifest]:
    """The objects of values over the least."""
    return charts.render(charts.merged(charts.MODEL, *layers))


def worker(objects: list[charts.Manifest], pool: str = "decode") -> charts.Manifest:
    """A pool's pod template."""
    return charts.pod_templates(objects)[f"RayService/baton/{pool}"]


def main_container(template: charts.Manifest) -> charts.Manifest:
    """The one that serves."""
    container: charts.Manifest = template["spec"]["containers"][0]
    return container


def test_a_slow_start_is_not_killed() -> None:
    """A worker's pod lives with its Ray node: Serve waits for the model, as long as the values say."""
    objects = rendered({"decode": {"startTimeoutSeconds": 7200}})
    for name in ("head", *POOLS):
        container = main_container(worker(objects, name))
        probes = [container[each] for each in ("startupProbe", "readinessProbe", "livenessProbe")]
        assert all(each["httpGet"] == {"path": "/api/healthz", "port": 52365} for each in probes)
        assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] >= 300
        assert probes[2]["periodSeconds"] * probes[2]["failureThreshold"] >= 60
    [application] = charts.serve_config(objects)["applications"]
    assert application["args"]["decode_ray"]["start_timeout_s"] == 7200
    assert charts.scaling_settings(objects)["start_timeout_s"] == 7200  # or the planner would take it back before
    assert charts.scaling_settings(rendered({"autoscaling": {"startTimeoutSeconds": 2500}}))["start_timeout_s"] == 2500


def test_a_routers_probes_ask_what_routers_answer() -> None:
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
    ("values", "expected"),
    [
        ({"minReplicas": 1}, 1),
        ({"minReplicas": 4}, 3),
        ({"minReplicas": 4, "replicasPerPod": 2}, 1),
        ({"minReplicas": 4, "podDisruptionBudget": {"minAvailable": 0}}, 0),
    ],
)
def test_evictions_leave_workers(values: dict[str, Any], expected: int) -> None:
    """As a number: a RayCluster has no scale that Kubernetes could ask for."""
    objects = rendered({"decode": values})
    budget = charts.only(objects, "PodDisruptionBudget", "baton-decode")["spec"]
    assert budget["minAvailable"] == expected
    assert "maxUnavailable" not in budget
    chosen = {
        name
        for name, template in charts.pod_templates(objects).items()
        if selects(budget["selector"], template["metadata"]["labels"])
    }
    assert chosen == {"RayService/baton/decode"}


def test_each_budget_can_be_left_out() -> None:
    off = {"podDisruptionBudget": {"enabled": False}}
    objects = rendered(dict.fromkeys(("router", "head", *POOLS), off))
    assert not [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert len([each for each in rendered() if each["kind"] == "PodDisruptionBudget"]) == 4


@pytest.mark.parametrize(
    ("values", "kind", "replicas"),
    [
        ({}, "HorizontalPodAutoscaler", None),
        ({"router": {"autoscaling": {"enabled": False}, "replicas": 3}}, None, 3),
        ({"router": {"autoscaling": {"enabled": False}}, "keda": KEDA}, "ScaledObject", None),
    ],
)
def test_one_thing_sizes_the_routers(values: dict[str, Any], kind: str | None, replicas: int | None) -> None:
    objects = rendered(values)
    scalers = [each for each in objects if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
    assert [each["kind"] for each in scalers] == ([kind] if kind else [])
    assert charts.only(objects, "Deployment", "baton-router")["spec"].get("replicas") == replicas
    for each in scalers:
        assert each["spec"]["scaleTargetRef"]["name"] == "baton-router"


def test_what_leads_to_the_routers_leads_to_their_ports() -> None:
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


def test_who_leads_clients_in_knows_that_routers_speak_https() -> None:
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


def test_a_certificate_of_ours_has_the_name_that_the_gateway_asks_for() -> None:
    objects = charts.render(CASES["tls"])
    asked = charts.only(objects, "BackendTLSPolicy")["spec"]["validation"]["hostname"]
    assert asked in charts.only(objects, "Certificate", "baton-https")["spec"]["dnsNames"]


def test_rdma_gives_the_device_and_what_it_needs() -> None:
    container = main_container(worker(charts.render(CASES["rdma"])))
    limits = container["resources"]["limits"]
    assert (limits["rdma/hca"], limits["hugepages-2Mi"], limits["nvidia.com/gpu"]) == (1, "2Gi", 1)
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["UCX_TLS"] == "rc,cuda_copy,cuda_ipc,tcp"
    assert env["UCX_NET_DEVICES"] == "all"
    assert {"name": "hugepages", "mountPath": "/dev/hugepages"} in container["volumeMounts"]
    without = main_container(worker(rendered()))
    assert not [each for each in without["env"] if each["name"].startswith("UCX_")]
    assert set(without["resources"]["limits"]) == {"cpu", "memory", "nvidia.com/gpu"}
    head = charts.pod_templates(charts.render(CASES["rdma"]))["RayService/baton/head"]
    assert set(main_container(head)["resources"]["limits"]) == {"cpu", "memory"}


def test_shared_memory_is_memory_of_a_size() -> None:
    volumes = {each["name"]: each for each in worker(rendered({"decode": {"shmGi": 12}}))["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "12Gi"}


@pytest.mark.parametrize(
    ("values", "volume"),
    [
        ({"sizeLimit": "7Gi"}, {"emptyDir": {"sizeLimit": "7Gi"}}),
        ({"type": "pvc"}, {"persistentVolumeClaim": {"claimName": "baton-models"}}),
        ({"type": "pvc", "pvc": {"existingClaim": "mine"}}, {"persistentVolumeClaim": {"claimName": "mine"}}),
        ({"type": "hostPath", "hostPath": "/m"}, {"hostPath": {"path": "/m", "type": "Directory"}}),
    ],
)
def test_the_model_is_where_the_values_say(values: dict[str, Any], volume: dict[str, Any]) -> None:
    objects = rendered({"modelCache": values})
    for name in ("Deployment/baton-router", "RayService/baton/prefill"):
        spec = charts.pod_templates(objects)[name]["spec"]
        assert {"name": "models", **volume} in spec["volumes"]
        [fetch] = spec["initContainers"]
        without = ["--without-weights"] if "router" in name and "persistentVolumeClaim" not in volume else []
        model = ["Qwen/Qwen3-0.6B", "/models/Qwen/Qwen3-0.6B"]
        assert fetch["command"] == ["baton", "fetch", *model, *without]
    claims = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert len(claims) == (volume == {"persistentVolumeClaim": {"claimName": "baton-models"}})
    assert all(each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for each in claims)


def test_where_a_job_fetches_the_others_wait_and_cannot_write() -> None:
    objects = rendered({"modelCache": {"type": "pvc", "job": {"enabled": True}}})
    templates = charts.pod_templates(objects)
    [job] = [template for name, template in templates.items() if name.startswith("Job/")]
    [fetch] = job["spec"]["containers"]
    for name in ("Deployment/baton-router", *(f"RayService/baton/{pool}" for pool in POOLS)):
        [wait] = templates[name]["spec"]["initContainers"]
        assert wait["command"] == [*fetch["command"], "--wait"]
        assert wait["resources"] == fetch["resources"]
        [models] = [each for each in wait["volumeMounts"] if each["name"] == "models"]
        assert models == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_a_model_that_is_there_is_not_fetched() -> None:
    for template in charts.pod_templates(charts.render({"model": "/models/llama/"})).values():
        assert "initContainers" not in template["spec"]
    assert charts.serve_config(charts.render({"model": "/models/llama/"}))["applications"][0]["args"]["model"] == (
        "/models/llama"
    )


def test_a_jobs_name_goes_with_what_it_fetches() -> None:
    """It cannot be changed."""
    cache = {"modelCache": {"type": "pvc", "job": {"enabled": True}}}
    jobs = [charts.only(rendered(cache, more), "Job") for more in ({}, {"model": "a/b"}, {"image": {"tag": "2"}})]
    assert len({each["metadata"]["name"] for each in jobs}) == 3
    assert charts.only(rendered(cache), "Job") == jobs[0]
    bounds = charts.only(rendered(cache, {"decode": {"maxReplicas": 9}}), "Job")
    assert bounds == jobs[0]


def test_a_token_for_the_hub_goes_to_who_fetches_only() -> None:
    objects = rendered({"modelCache": {"hubToken": {"existingSecret": "hub"}, "hubEndpoint": "https://mirror"}})
    for template in charts.pod_templates(objects).values():
        for container in charts.containers(template):
            names = {each["name"] for each in container.get("env", ())}
            assert ({"HF_TOKEN", "HF_ENDPOINT"} <= names) is (container["name"] == "fetch")


def test_who_fetches_gets_its_own_variables() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    objects = rendered({"modelCache": {"type": "pvc", "job": {"enabled": True}, "extraEnv": [proxy]}})
    for template in charts.pod_templates(objects).values():
        for container in charts.containers(template):
            assert (proxy in container.get("env", ())) is (container["name"] == "fetch")


def test_a_password_of_ones_own_is_used_by_all_who_need_it() -> None:
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
    assert rendered(values, {"redis": {"auth": {"existingSecret": "mine"}}}) == objects


def test_redis_starts_anew_with_another_password() -> None:
    """Rendered without the cluster, which knows the one that there is, each time is another."""

    def checksum(values: dict[str, Any]) -> str:
        template = charts.pod_templates(rendered({"redis": values}))["Deployment/baton-redis"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) != checksum({})
    mine = {"auth": {"existingSecret": "mine"}}
    assert checksum(mine) == checksum(mine)
    assert checksum(mine) != checksum({**mine, "persistence": {"enabled": True}})
    assert checksum(mine) != checksum({"auth": {"existingSecret": "other"}})


def test_a_registry_from_elsewhere() -> None:
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


def test_spreading_counts_the_components_own_pods() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**spread, "labelSelector": {"matchLabels": {"a": "b"}}}
    template = worker(rendered({"decode": {"topologySpreadConstraints": [spread, own]}}))
    [first, second] = template["spec"]["topologySpreadConstraints"]
    assert selects(first["labelSelector"], template["metadata"]["labels"])
    assert not selects(first["labelSelector"], worker(rendered(), "prefill")["metadata"]["labels"])
    assert second == own


def test_placement_goes_to_its_own_pool() -> None:
    placement = {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "extraEnv": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "extraResources": {"vendor.example/nic": 2},
        "extraVolumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    objects = rendered({"decode": placement})
    template = worker(objects)
    names = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName")
    assert {name: template["spec"][name] for name in names} == {name: placement[name] for name in names}
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    container = main_container(template)
    assert placement["extraEnv"][0] in container["env"]
    assert container["resources"]["requests"]["vendor.example/nic"] == 2
    assert placement["extraVolumes"][0] in template["spec"]["volumes"]
    assert placement["extraVolumeMounts"][0] in container["volumeMounts"]
    assert worker(objects, "prefill") == worker(rendered(), "prefill")


def test_no_annotation_of_a_workers_pod_goes_with_what_may_change() -> None:
    """The operator would build a second cluster."""
    for name in ("head", *POOLS):
        assert "annotations" not in worker(rendered(), name)["metadata"]


def test_a_router_starts_anew_when_its_file_changes() -> None:
    before, after = (
        charts.pod_templates(rendered(values))["Deployment/baton-router"]["metadata"]["annotations"]
        for values in ({}, {"router": {"config": {"maxQueueWaitS": 1}}})
    )
    assert before != after

"""A release from its install to its end, by Helm itself on a server that checks every object."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.deployment.kubernetes.api_server import ApiServer as BudgetSource
from baton.deployment.kubernetes.api_server import ApiServerError
from tests.helm import charts
from tests.helm.api_server.api import Api, Writing
from tests.helm.api_server.client import Client
from tests.helm.api_server.errors import Json
from tests.helm.api_server.kuberay_operator import kuberay_operator, without_sizes
from tests.helm.api_server.resource_types import ResourceTypes
from tests.helm.api_server.server import ApiServer
from tests.helm.charts import CHART, EXAMPLES, MODEL, merged
from tests.helm.clusters import ALL, NAMESPACE, cluster, strict
from tests.helm.releases import HelmFailed, Releases, helm

KEPT = {"modelCache": {"type": "pvc"}, "redis": {"persistence": {"enabled": True}}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with cluster(tmp_path) as running:
        yield running


@pytest.fixture
def releases(server: ApiServer) -> Iterator[Releases]:
    with helm(server, NAMESPACE) as connected:
        yield connected


class Seen:
    """What is in the namespace."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self.server, self.client = server, client

    def all(self) -> dict[str, Json]:
        """By kind and name; without Helm's own."""
        self.server.settle()
        return {
            f"{key.type.kind}/{key.name}": written
            for key, written in self.server.call(lambda api: [(key, api.get(key)) for key in api.store])
            if key.namespace == NAMESPACE and not key.name.startswith("sh.helm.release.")
        }

    def wished(self) -> dict[str, Json]:
        """What somebody wants of those objects that nobody made for another."""
        left_out = ("metadata", "status", "apiVersion", "kind")
        return {
            name: {key: value for key, value in each.items() if key not in left_out}
            for name, each in self.all().items()
            if not each["metadata"].get("ownerReferences")
        }

    def of(self, kind: str, **query: str) -> list[Json]:
        """All of that kind."""
        self.server.settle()
        return self.client.list(kind, NAMESPACE, **query)

    def one(self, kind: str) -> Json:
        """The only one of that kind."""
        [found] = self.of(kind)
        return found

    def pods(self) -> list[str]:
        """The groups of Ray's pods, in alphabetical order."""
        pods = self.of("Pod", labelSelector="ray.io/is-ray-node=yes")
        return sorted(each["metadata"]["labels"]["ray.io/group"] for each in pods)


@pytest.fixture
def seen(server: ApiServer, client: Client) -> Seen:
    return Seen(server, client)


@pytest.mark.parametrize("name", ["default", *EXAMPLES])
def test_an_install_creates_every_object(releases: Releases, seen: Seen, name: str) -> None:
    values = MODEL if name == "default" else charts.example(name)
    releases.install(CHART, "baton", values, wait="watcher", timeout=60)
    there = seen.all()
    for each in charts.render(values):
        kind, object_name = each["kind"], each["metadata"]["name"]
        if "helm.sh/hook" not in each["metadata"].get("annotations", {}):
            assert f"{kind}/{object_name}" in there, f"{kind} {object_name} is missing"
    groups = seen.one("RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    wanted = [group["groupName"] for group in groups for _ in range(group["replicas"])]
    assert {"prefill", "decode"} == set(wanted)
    assert seen.pods() == sorted(["headgroup", *wanted])


def test_pods_are_placed_by_their_pools_values(releases: Releases, seen: Seen) -> None:
    """What the operator makes of the groups, and not what the groups say alone."""
    placement = {
        name: {
            "nodeSelector": {"pool": name},
            "tolerations": [{"key": name, "operator": "Exists", "effect": "NoSchedule"}],
        }
        for name in ("head", "prefill", "decode")
    }
    releases.install(CHART, "baton", merged(MODEL, placement))
    pods = seen.of("Pod", labelSelector="ray.io/is-ray-node=yes")
    found = {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"] for each in pods}
    wanted = ("nodeSelector", "tolerations")
    assert {name: {key: spec[key] for key in wanted} for name, spec in found.items()} == placement


@pytest.mark.slow
def test_new_bounds_build_no_second_cluster(releases: Releases, seen: Seen) -> None:
    """A second one would need all GPUs twice."""
    releases.install(CHART, "baton", MODEL)
    before, first = seen.one("RayService"), seen.one("RayCluster")
    sizes = {"prefill": {"maxReplicas": 7}, "decode": {"minReplicas": 2, "maxReplicas": 9}}
    releases.upgrade(CHART, "baton", merged(MODEL, sizes))
    after = seen.one("RayService")
    assert config_of(after) == config_of(before)
    assert sizes_of(before) == {"prefill": (1, 4), "decode": (1, 4)}
    assert sizes_of(after) == {"prefill": (1, 7), "decode": (2, 9)}
    assert seen.one("RayCluster")["metadata"]["uid"] == first["metadata"]["uid"]


@pytest.mark.slow
def test_the_running_cluster_has_room_for_the_new_bounds(releases: Releases, seen: Seen) -> None:
    """The operator does not pass sizes of groups on to a cluster that runs, so they have to be there from the start."""
    releases.install(CHART, "baton", MODEL)
    room = {each["groupName"]: each["maxReplicas"] for each in seen.one("RayCluster")["spec"]["workerGroupSpecs"]}
    releases.upgrade(CHART, "baton", merged(MODEL, {"decode": {"maxReplicas": room["decode"]}}))
    assert sizes_of(seen.one("RayService"))["decode"] == (1, room["decode"])
    beyond = merged(MODEL, {"decode": {"maxReplicas": room["decode"] + 1}})
    with pytest.raises(HelmFailed, match="maxPods"):
        releases.upgrade(CHART, "baton", beyond)
    releases.upgrade(CHART, "baton", merged(beyond, {"decode": {"maxPods": room["decode"] + 1}}))
    live = {each["groupName"]: each["maxReplicas"] for each in seen.one("RayCluster")["spec"]["workerGroupSpecs"]}
    assert live == room


@pytest.mark.slow
def test_another_image_builds_a_second_cluster(releases: Releases, seen: Seen) -> None:
    releases.install(CHART, "baton", MODEL)
    before = seen.one("RayService")
    releases.upgrade(CHART, "baton", merged(MODEL, {"image": {"tag": "other"}}))
    assert config_of(seen.one("RayService")) != config_of(before)
    assert len(seen.of("RayCluster")) == 2


@pytest.mark.slow
def test_without_a_strategy_there_is_never_a_second_cluster(releases: Releases, seen: Seen) -> None:
    values = merged(MODEL, {"ray": {"upgradeStrategy": "None"}})
    releases.install(CHART, "baton", values)
    first = seen.one("RayCluster")
    releases.upgrade(CHART, "baton", merged(values, {"image": {"tag": "other"}}))
    assert seen.one("RayCluster")["spec"] == first["spec"]


@pytest.mark.slow
def test_a_rollback_restores_the_earlier_state(releases: Releases, seen: Seen) -> None:
    releases.install(CHART, "baton", MODEL)
    before = seen.wished()
    changes = {"decode": {"maxReplicas": 9}, "router": {"grpc": True}, "networkPolicy": {"enabled": False}}
    releases.upgrade(CHART, "baton", merged(MODEL, changes, {"monitoring": {"rules": {"enabled": True}}}))
    between = seen.wished()
    assert before.keys() - between.keys()
    assert between.keys() - before.keys()
    releases.rollback("baton")
    assert seen.wished() == before
    assert releases.revisions("baton") == [1, 2, 3]


def test_an_uninstall_leaves_only_objects_to_keep(releases: Releases, seen: Seen) -> None:
    empty = seen.all().keys()
    releases.install(CHART, "baton", merged(MODEL, KEPT))
    claims = {name for name in seen.all() if name.startswith("PersistentVolumeClaim/")}
    assert len(claims) == 2
    assert len(seen.pods()) == 3
    releases.uninstall("baton")
    assert seen.all().keys() - empty == claims


@pytest.mark.slow
def test_an_uninstall_leaves_nothing_else_anywhere(releases: Releases, seen: Seen) -> None:
    cluster_wide = {"autoscaling": {"clusterBudget": {"enabled": True, "createClusterRole": True}}}
    before = seen.server.call(lambda api: set(api.store))
    releases.install(CHART, "baton", merged(MODEL, cluster_wide))
    assert seen.client.list("ClusterRole", "")
    releases.test("baton", timeout=30)
    releases.uninstall("baton")
    left = seen.server.call(lambda api: set(api.store)) - before
    assert {f"{key.type.kind}/{key.name}" for key in left} == {"Pod/baton-test"}  # for its log


@pytest.mark.slow
def test_kept_objects_are_reused_by_the_next_install(releases: Releases, seen: Seen) -> None:
    releases.install(CHART, "baton", merged(MODEL, KEPT))
    models = seen.all()["PersistentVolumeClaim/baton-models"]["metadata"]["uid"]
    releases.uninstall("baton")
    releases.install(CHART, "baton", merged(MODEL, KEPT))
    assert seen.all()["PersistentVolumeClaim/baton-models"]["metadata"]["uid"] == models


def test_the_password_survives_upgrades(releases: Releases, seen: Seen) -> None:
    """Pods read it when they start: another one would part them from those that run."""

    def secrets() -> dict[str, Json]:
        return {name: each["data"] for name, each in seen.all().items() if name.startswith("Secret/")}

    releases.install(CHART, "baton", MODEL)
    before, redis = secrets(), seen.all()["Deployment/baton-redis"]["spec"]
    assert any(len(base64.b64decode(each["password"])) >= 32 for each in before.values() if "password" in each)
    releases.upgrade(CHART, "baton", merged(MODEL, {"router": {"grpc": True}}))
    assert secrets() == before
    assert seen.all()["Deployment/baton-redis"]["spec"] == redis  # nor is it started anew


def test_an_autoscaled_router_keeps_its_size(releases: Releases, seen: Seen) -> None:
    releases.install(CHART, "baton", MODEL)
    router = next(name for name in seen.all() if name.startswith("Deployment/") and "router" in name)
    name = router.removeprefix("Deployment/")
    seen.client.patch("Deployment", name, {"spec": {"replicas": 5}}, below="scale", namespace=NAMESPACE)
    releases.upgrade(CHART, "baton", merged(MODEL, {"router": {"grpc": True}}))
    assert seen.all()[router]["spec"]["replicas"] == 5


def test_the_test_pod_is_created_only_for_helm_test(releases: Releases, seen: Seen) -> None:
    releases.install(CHART, "baton", MODEL)
    assert "Pod/baton-test" not in seen.all()
    releases.test("baton", timeout=30)
    pod = seen.all()["Pod/baton-test"]
    assert pod["status"]["phase"] == "Succeeded"
    [router] = seen.all()["Deployment/baton-router"]["spec"]["template"]["spec"]["containers"]
    assert pod["spec"]["containers"][0]["image"] == router["image"]


@pytest.mark.slow
def test_two_releases_share_a_namespace(releases: Releases, seen: Seen) -> None:
    releases.install(CHART, "one", MODEL)
    first = seen.wished()
    releases.install(CHART, "two", MODEL)
    assert len(seen.of("RayCluster")) == 2
    releases.uninstall("two")
    assert seen.wished() == first


def test_an_object_with_an_unknown_field_stops_the_install(releases: Releases) -> None:
    """So whatever else is installed here has none."""
    typo = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}, "dta": {"x": "1"}}
    with pytest.raises(HelmFailed, match="'dta' was unexpected"):
        releases.install(CHART, "baton", merged(MODEL, {"extraObjects": [typo]}))


def test_the_head_has_permission_to_read_its_budget(
    releases: Releases, seen: Seen, server: ApiServer, tmp_path: Path
) -> None:
    releases.install(CHART, "baton", MODEL)
    account = seen.one("RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["serviceAccountName"]
    environ = server.service_account(NAMESPACE, account, tmp_path / "pod")
    source = BudgetSource.of_pod(environ, tmp_path / "pod", 5.0)
    try:
        with pytest.raises(ApiServerError, match="403"):
            source.nodes(lambda node: node.metadata.name)
        budget = {"autoscaling": {"clusterBudget": {"enabled": True, "createClusterRole": True}}}
        releases.upgrade(CHART, "baton", merged(MODEL, budget))
        assert source.nodes(lambda node: node.metadata.name) == []
        pods = source.pods(lambda pod: pod.metadata.labels.get("app.kubernetes.io/component"), NAMESPACE)
        assert {"prefill", "decode"} <= set(pods)
    finally:
        source.close()


def test_the_operator_refuses_a_head_without_a_port_for_serve() -> None:
    """Ours names its ports, so the operator takes none for granted."""
    service = charts.only(charts.render(MODEL), "RayService")
    [head] = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"]
    head["ports"] = [each for each in head["ports"] if each["name"] != "serve"]
    api = Api(ResourceTypes(ALL), strict)
    namespace: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    for kind, where, body in (("Namespace", "", namespace), ("RayService", NAMESPACE, service)):
        api.create(api.types.of_kind(kind), where, body, Writing("test"))
    with pytest.raises(RuntimeError, match="no port named serve"):
        asyncio.run(asyncio.wait_for(kuberay_operator(api), 10.0))


def test_without_the_operator_nothing_is_installed(tmp_path: Path) -> None:
    with cluster(tmp_path, ()) as server, helm(server, NAMESPACE) as releases:
        with pytest.raises(HelmFailed, match="KubeRay operator is missing"):
            releases.install(CHART, "baton", MODEL)
        written = server.call(lambda api: [key for key in api.store if key.namespace])
    assert not written


def config_of(service: Json) -> Json:
    """What the operator compares."""
    return without_sizes(service["spec"]["rayClusterConfig"])


def sizes_of(service: Json) -> dict[str, tuple[int, int]]:
    """The bounds that Serve is given."""
    [application] = charts.serve_config([service])["applications"]
    pools = {each["name"]: each["autoscaling_config"] for each in application["deployments"]}
    return {name: (each["min_replicas"], each["max_replicas"]) for name, each in pools.items()}

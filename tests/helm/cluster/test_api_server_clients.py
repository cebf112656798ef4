"""The server and its clients: the `kubernetes` package, our reader of budgets, accounts that may do little."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client as official  # whose attributes are imported when they are used, in a second
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config_dict
from kubernetes.watch import Watch

from baton.deployment.kubernetes.api_server import ApiServer as BudgetSource
from tests.helm.api_server.client import Client, refusal
from tests.helm.api_server.server import ApiServer
from tests.helm.objects import container, deployment, names, pod
from tests.unit.deployment import kubernetes_objects


@pytest.fixture
def kubernetes(server: ApiServer) -> Iterator[ApiClient]:
    """The client that others use."""
    with new_client_from_config_dict(yaml.safe_load(server.kubeconfig("default"))) as connected:
        yield connected


def test_the_kubernetes_client_works_against_the_server(kubernetes: ApiClient) -> None:
    apps = official.AppsV1Api(kubernetes)
    apps.create_namespaced_deployment("default", deployment("a", container("main"), replicas=1))
    apps.patch_namespaced_deployment("a", "default", {"spec": {"replicas": 2}})
    scale = apps.read_namespaced_deployment_scale("a", "default")
    assert scale.spec.replicas == 2
    scale.spec.replicas = 5
    apps.replace_namespaced_deployment_scale("a", "default", scale)
    live = apps.read_namespaced_deployment("a", "default")
    assert (live.spec.replicas, live.metadata.generation) == (5, 3)
    with pytest.raises(ApiException) as stale:  # it has changed since it was read
        apps.replace_namespaced_deployment_scale("a", "default", scale)
    assert stale.value.status == 409
    apps.delete_namespaced_deployment("a", "default")
    assert not apps.list_namespaced_deployment("default").items


def test_custom_objects_behave_like_others(kubernetes: ApiClient) -> None:
    place = ("ray.io", "v1", "default", "rayclusters")
    api = official.CustomObjectsApi(kubernetes)
    metadata = {"name": "a"}
    api.create_namespaced_custom_object(
        *place, {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": {"suspend": False}}
    )
    patched = api.patch_namespaced_custom_object(*place, "a", {"spec": {"suspend": True}})
    assert patched["spec"] == {"suspend": True}
    assert names(api.list_namespaced_custom_object(*place)["items"]) == ["a"]


def test_a_watch_reports_changes(kubernetes: ApiClient, client: Client) -> None:
    version = client.create(pod("a", labels={"pool": "x"}))["metadata"]["resourceVersion"]
    client.create(pod("b"))
    client.patch("Pod", "a", {"metadata": {"labels": {"pool": "y"}}})
    client.patch("Pod", "b", {"metadata": {"labels": {"pool": "x"}}})
    client.delete("Pod", "b")
    watch, core = Watch(), official.CoreV1Api(kubernetes)
    seen = []
    query = {"resource_version": version, "label_selector": "pool=x", "timeout_seconds": 5}
    for event in watch.stream(core.list_namespaced_pod, "default", **query):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 3:
            watch.stop()
    assert seen == [("DELETED", "a"), ("ADDED", "b"), ("DELETED", "b")]


def test_a_request_with_an_unknown_token_is_refused(server: ApiServer) -> None:
    with Client(server, "guessed") as nobody:
        assert refusal(lambda: nobody.list("Pod")).code == 401


def test_permissions_follow_the_roles(server: ApiServer, client: Client, tmp_path: Path) -> None:
    server.service_account("default", "reader", tmp_path / "pod")
    group = "rbac.authorization.k8s.io"
    api_version = f"{group}/v1"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    role = {"apiVersion": api_version, "kind": "Role", "metadata": {"name": "read"}, "rules": rules}
    binding = {
        "apiVersion": api_version,
        "kind": "RoleBinding",
        "metadata": {"name": "read"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "read"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
    }
    client.create(pod("a"))
    with Client(server, (tmp_path / "pod/token").read_text()) as reader:
        assert refusal(lambda: reader.list("Pod")).code == 403
        client.create(role)
        client.create(binding)
        assert names(reader.list("Pod")) == ["a"]
        for ask in (
            lambda: reader.get("Pod", "a"),
            lambda: reader.list("Pod", "elsewhere"),
            lambda: reader.list("ConfigMap"),
            lambda: reader.delete("Pod", "a"),
        ):
            assert refusal(ask).code == 403
        words = str(refusal(lambda: reader.get("Pod", "a")))
    assert words == (
        'pods "a" is forbidden: User "system:serviceaccount:default:reader" cannot get resource "pods" '
        'in API group "" in the namespace "default"'
    )


def test_the_budget_reader_works_against_the_server(server: ApiServer, client: Client, tmp_path: Path) -> None:
    """What the small server of the budget's own tests is asked for, this one answers too."""
    client.create({"apiVersion": "v1", "kind": "Node", **kubernetes_objects.node("gpu-0")}, "")
    metadata = {"name": "a", "labels": {"app": "baton"}}
    client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})
    environ = server.service_account("default", "baton", tmp_path / "pod")
    client.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "budget"},
            "rules": [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}],
        }
    )
    client.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "budget"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "budget"},
            "subjects": [{"kind": "ServiceAccount", "name": "baton", "namespace": "default"}],
        }
    )
    source = BudgetSource.of_pod(environ, tmp_path / "pod", 5.0)
    try:
        assert source.nodes(lambda node: node.metadata.name) == ["gpu-0"]
        assert source.pods(lambda each: each.metadata.name, None) == ["a"]
    finally:
        source.close()

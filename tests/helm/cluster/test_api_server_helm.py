"""The server and Helm, with a chart of a few objects: every action, and what is there after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.api_server.builtin_resources import BUILT_IN
from tests.helm.api_server.client import Client
from tests.helm.api_server.controllers import node
from tests.helm.api_server.errors import Json
from tests.helm.api_server.server import ApiServer, serving
from tests.helm.conftest import accept
from tests.helm.releases import HelmFailed, helm

CHART = Path(__file__).parents[1] / "data/small"
KINDS = ("ServiceAccount", "PersistentVolumeClaim", "Deployment", "Service", "ConfigMap", "RayService", "Pod", "Secret")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """With a node that runs what there is."""
    with serving(tmp_path, accept, controllers=[node()]) as running:
        yield running


def there(client: Client) -> set[str]:
    return {f"{kind}/{each['metadata']['name']}" for kind in KINDS for each in client.list(kind)}


RELEASED = {
    "ServiceAccount/one",
    "PersistentVolumeClaim/one-cache",
    "Deployment/one",
    "Service/one",
    "RayService/one",
    "Secret/sh.helm.release.v1.one.v1",
}


def env(live: Json) -> list[str]:
    return [each["name"] for each in live["spec"]["template"]["spec"]["containers"][0]["env"]]


def test_helm_installs_upgrades_rolls_back_and_uninstalls(server: ApiServer, client: Client) -> None:
    with helm(server) as releases:
        releases.install(CHART, "one", {})
        assert there(client) == RELEASED | {"ConfigMap/one-extra"}
        releases.upgrade(CHART, "one", {"extra": False, "replicas": 3})
        assert there(client) == RELEASED | {"Secret/sh.helm.release.v1.one.v2"}
        live = client.get("Deployment", "one")
        assert (live["spec"]["replicas"], env(live)) == (3, ["KEPT"])
        releases.rollback("one")
        live = client.get("Deployment", "one")
        assert (live["spec"]["replicas"], env(live)) == (2, ["KEPT", "EXTRA"])
        assert "ConfigMap/one-extra" in there(client)
        assert releases.revisions("one") == [1, 2, 3]
        releases.uninstall("one")
    assert there(client) == {"PersistentVolumeClaim/one-cache"}


def test_another_helm_process_finds_the_release(server: ApiServer) -> None:
    with helm(server) as releases:
        releases.install(CHART, "one", {"replicas": 3})
    with helm(server) as releases:
        assert releases.values("one") == {"replicas": 3}


def test_an_install_waits_until_all_objects_are_ready(server: ApiServer, client: Client) -> None:
    with helm(server) as releases:
        releases.install(CHART, "one", {}, wait="watcher", timeout=30)
    assert client.get("Deployment", "one")["status"]["readyReplicas"] == 2


def test_the_tests_of_a_release_run(server: ApiServer, client: Client) -> None:
    with helm(server) as releases:
        releases.install(CHART, "one", {})
        assert "Pod/one-test" not in there(client)
        releases.test("one", timeout=30)
    assert client.get("Pod", "one-test")["status"]["phase"] == "Succeeded"


def test_a_failing_release_test_is_reported(tmp_path: Path) -> None:
    with serving(tmp_path, accept, controllers=[node(lambda pod: 1)]) as server, helm(server) as releases:
        releases.install(CHART, "one", {})
        with pytest.raises(HelmFailed, match="one-test"):
            releases.test("one", timeout=30)


def test_an_upgrade_stops_at_fields_changed_by_other_managers(server: ApiServer, client: Client) -> None:
    with helm(server) as releases:
        releases.install(CHART, "one", {})
        client.patch("Deployment", "one", {"spec": {"replicas": 7}}, below="scale")
        with pytest.raises(HelmFailed, match=r"\.spec\.replicas"):
            releases.upgrade(CHART, "one", {"replicas": 3})
    assert client.get("Deployment", "one")["spec"]["replicas"] == 7


def test_an_object_that_violates_its_schema_stops_the_install(tmp_path: Path) -> None:
    def validate(written: Json, _: Json | None) -> None:
        if written["kind"] == "Service":
            raise ValueError("spec.ports: is wrong")

    with (
        serving(tmp_path, validate) as server,
        helm(server) as releases,
        pytest.raises(HelmFailed, match="is wrong"),
    ):
        releases.install(CHART, "one", {})


def test_objects_of_a_missing_kind_are_left_out(tmp_path: Path) -> None:
    with serving(tmp_path, accept, types=BUILT_IN) as server, Client(server) as client, helm(server) as releases:
        releases.install(CHART, "one", {})
        assert client.list("Deployment")

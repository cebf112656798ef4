"""The server's verbs, as its clients rely on them."""

import threading
from pathlib import Path

import pytest

from tests.helm.api_server.api import JSON_PATCH
from tests.helm.api_server.client import Client, Refused, refusal
from tests.helm.api_server.errors import Json
from tests.helm.api_server.server import ApiServer, serving
from tests.helm.objects import config_map, container, deployment, names, owned_by, pod


def test_the_second_of_two_writers_gets_a_conflict(client: Client) -> None:
    client.create(config_map("a", {"x": "0"}))
    first, second = client.get("ConfigMap", "a"), client.get("ConfigMap", "a")
    client.replace({**first, "data": {"x": "1"}})
    refused = refusal(lambda: client.replace({**second, "data": {"x": "2"}}))
    assert (refused.code, refused.reason) == (409, "Conflict")
    patch = {"metadata": {"resourceVersion": second["metadata"]["resourceVersion"]}, "data": {"x": "2"}}
    assert refusal(lambda: client.patch("ConfigMap", "a", patch)).code == 409
    assert client.get("ConfigMap", "a")["data"] == {"x": "1"}


def test_concurrent_writes_are_not_lost(server: ApiServer, client: Client) -> None:
    client.create(config_map("a", {"x": "0"}))
    conflicts: list[Refused] = []

    def count(num: int) -> None:
        with Client(server) as own:
            while num:
                live = own.get("ConfigMap", "a")
                try:
                    own.replace({**live, "data": {"x": str(int(live["data"]["x"]) + 1)}})
                    num -= 1
                except Refused as refused:
                    conflicts.append(refused)

    threads = [threading.Thread(target=count, args=(15,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("ConfigMap", "a")["data"] == {"x": "45"}
    assert {refused.code for refused in conflicts} == {409}


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (config_map("a"), 409, "already exists"),
        (config_map("Big"), 422, "RFC 1123"),
        (config_map("b", resourceVersion="1"), 400, "should not be set"),
        ({**config_map("b"), "apiVersion": "v2"}, 400, "the object is v2 ConfigMap"),
    ],
)
def test_invalid_objects_are_not_created(client: Client, body: Json, code: int, words: str) -> None:
    client.create(config_map("a"))
    refused = refusal(lambda: client.create(body))
    assert refused.code == code
    assert words in str(refused)
    assert names(client.list("ConfigMap")) == ["a"]


def test_a_missing_namespace_is_not_found(client: Client) -> None:
    assert refusal(lambda: client.create(config_map("a"), "elsewhere")).code == 404
    assert refusal(lambda: client.apply(config_map("a"), "me", namespace="elsewhere")).code == 404


def test_generated_names_differ(client: Client) -> None:
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-"}}
    made = {client.create(body)["metadata"]["name"] for _ in range(5)}
    assert len(made) == 5
    assert all(name.startswith("a-") and len(name) == 7 for name in made)


def test_objects_that_violate_their_schema_are_refused(tmp_path: Path) -> None:
    def validate(written: Json, _: Json | None) -> None:
        if "bad" in written.get("data", {}):
            raise ValueError("data.bad: is not known")

    with serving(tmp_path, validate) as server, Client(server) as client:
        client.create(config_map("a", {"good": "1"}))
        for ask in (
            lambda: client.create(config_map("b", {"bad": "1"})),
            lambda: client.apply(config_map("b", {"bad": "1"}), "me"),
            lambda: client.patch("ConfigMap", "a", {"data": {"bad": "1"}}),
        ):
            refused = refusal(ask)
            assert refused.code == 422
            assert "data.bad: is not known" in str(refused)
        assert [each["data"] for each in client.list("ConfigMap")] == [{"good": "1"}]


def test_spec_and_status_are_written_separately(client: Client) -> None:
    made = client.create({**deployment("a", container("main"), replicas=1), "status": {"replicas": 9}})
    assert "status" not in made
    made["status"], made["spec"]["replicas"] = {"replicas": 1}, 7
    written = client.replace(made, "status")
    assert (written["status"], written["spec"]["replicas"]) == ({"replicas": 1}, 1)
    assert written["metadata"]["generation"] == 1
    written["status"], written["spec"]["replicas"] = {"replicas": 2}, 7
    written = client.replace(written)
    assert (written["status"], written["spec"]["replicas"]) == ({"replicas": 1}, 7)
    assert written["metadata"]["generation"] == 2


def test_a_write_without_changes_keeps_the_version(client: Client) -> None:
    made = client.create(config_map("a", {"x": "1"}))
    assert client.replace(made) == made
    assert client.patch("ConfigMap", "a", {"data": {"x": "1"}}) == made


def test_quantities_are_strings_and_secrets_base64(client: Client) -> None:
    """Whatever they were when they were sent."""
    main = {**container("main"), "resources": {"limits": {"nvidia.com/gpu": 4, "cpu": 0.5}}}
    client.create(deployment("a", main))
    [live] = client.apply(deployment("a", main), "helm")["spec"]["template"]["spec"]["containers"]
    assert live["resources"] == {"limits": {"nvidia.com/gpu": "4", "cpu": "0.5"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": {"x": "1"}}
    for made in (client.create(secret), client.apply(secret, "helm"), client.get("Secret", "a")):
        assert made["data"] == {"x": "MQ=="}
        assert "stringData" not in made


def test_a_dry_run_changes_nothing(client: Client) -> None:
    client.create(config_map("a", {"x": "1"}))
    path, dry = "/api/v1/namespaces/default/configmaps", {"dryRun": "All"}
    assert client.ask("POST", path, dry, config_map("b"))["metadata"]["name"] == "b"
    assert client.ask("PUT", f"{path}/a", dry, config_map("a", {"x": "2"}))["data"] == {"x": "2"}
    client.ask("DELETE", f"{path}/a", dry)
    assert [each["data"] for each in client.list("ConfigMap")] == [{"x": "1"}]


def test_a_json_patch_is_atomic(client: Client) -> None:
    client.create(config_map("a", {"x": "1"}))
    wrong = [{"op": "replace", "path": "/data/x", "value": "2"}, {"op": "test", "path": "/data/x", "value": "1"}]
    assert refusal(lambda: client.patch("ConfigMap", "a", wrong, JSON_PATCH)).code == 422
    missing = [{"op": "replace", "path": "/data/y", "value": "2"}]
    assert refusal(lambda: client.patch("ConfigMap", "a", missing, JSON_PATCH)).code == 422
    assert client.get("ConfigMap", "a")["data"] == {"x": "1"}


def test_owned_objects_are_deleted_with_their_owner(client: Client) -> None:
    for propagation, left in (("Background", []), ("Foreground", []), ("Orphan", ["grandchild", "child"])):
        owner = client.create(config_map("owner"))
        child = client.create(pod("child", ownerReferences=owned_by(owner)))
        client.create(config_map("grandchild", ownerReferences=owned_by(child)))
        client.delete("ConfigMap", "owner", propagation=propagation)
        assert names(client.list("ConfigMap") + client.list("Pod")) == left
    assert client.get("Pod", "child")["metadata"]["ownerReferences"] == []


def test_a_finalizer_delays_a_deletion(client: Client) -> None:
    client.create(config_map("a", finalizers=["tests/hold"]))
    client.delete("ConfigMap", "a")
    assert client.get("ConfigMap", "a")["metadata"]["deletionTimestamp"]
    client.patch("ConfigMap", "a", {"metadata": {"finalizers": None}})
    assert not client.list("ConfigMap")


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ({"labelSelector": "pool=prefill"}, ["a"]),
        ({"labelSelector": "pool!=prefill"}, ["b", "c"]),
        ({"labelSelector": "pool in (prefill, decode),old"}, ["b"]),
        ({"labelSelector": "pool notin (prefill)"}, ["b", "c"]),
        ({"labelSelector": "!pool"}, ["c"]),
        ({"fieldSelector": "metadata.name!=a,status.phase=Pending"}, ["b", "c"]),
        ({"fieldSelector": "metadata.name=b", "labelSelector": "pool"}, ["b"]),
    ],
)
def test_selectors_filter_lists(client: Client, query: dict[str, str], chosen: list[str]) -> None:
    client.create(pod("a", labels={"pool": "prefill"}))
    client.create(pod("b", labels={"pool": "decode", "old": "yes"}))
    client.create(pod("c"))
    assert names(client.list("Pod", **query)) == chosen


def test_lists_have_pages(server: ApiServer, client: Client) -> None:
    for name in "abcde":
        client.create(config_map(name))
    path = "/api/v1/namespaces/default/configmaps"
    first = client.ask("GET", path, {"limit": "2"})
    assert (names(first["items"]), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    query = {"limit": "10", "continue": first["metadata"]["continue"]}
    assert names(client.ask("GET", path, query)["items"]) == ["c", "d", "e"]
    client.create(config_map("f"))
    server.call(lambda api: api.store.forget_changes())
    assert refusal(lambda: client.ask("GET", path, query)).code == 410


def test_a_watch_from_an_expired_version_is_refused(server: ApiServer, client: Client) -> None:
    old = client.create(config_map("a"))["metadata"]["resourceVersion"]
    client.create(config_map("b"))
    server.call(lambda api: api.store.forget_changes())
    query = {"watch": "true", "resourceVersion": old}
    event = client.ask("GET", "/api/v1/namespaces/default/configmaps", query)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_a_watch_ends_after_its_timeout(client: Client) -> None:
    client.create(config_map("a"))
    query = {"watch": "true", "timeoutSeconds": "0.1"}
    assert client.ask("GET", "/api/v1/namespaces/default/configmaps", query)["type"] == "ADDED"

"""Who owns which field: server-side apply, and the patches that merge lists."""

import copy
import random

import pytest

from tests.helm.api_server.api import MERGE_PATCH, STRATEGIC
from tests.helm.api_server.changes.field_sets import decode, encode, fields_of
from tests.helm.api_server.client import Client, Refused
from tests.helm.api_server.errors import Json
from tests.helm.objects import config_map, container, deployment


def images(live: Json) -> dict[str, str]:
    return {each["name"]: each["image"] for each in live["spec"]["template"]["spec"]["containers"]}


def env(live: Json) -> dict[str, str]:
    return {each["name"]: each["value"] for each in live["spec"]["template"]["spec"]["containers"][0].get("env", ())}


def owned(live: Json, manager: str) -> set[str]:
    """The names of the leaves."""
    entries = [each for each in live["metadata"]["managedFields"] if each["manager"] == manager]
    return {path[-1] for each in entries for path in decode(each["fieldsV1"])}


def test_fields_that_are_no_longer_applied_are_removed(client: Client) -> None:
    client.apply(config_map("a", {"x": "1", "y": "1"}, labels={"app": "a"}), "helm")
    live = client.apply(config_map("a", {"x": "2"}), "helm")
    assert live["data"] == {"x": "2"}
    assert "labels" not in live["metadata"]


def test_fields_of_other_managers_stay(client: Client) -> None:
    client.apply(config_map("a", {"x": "1", "y": "1"}), "helm")
    client.patch("ConfigMap", "a", {"data": {"z": "1"}, "metadata": {"annotations": {"seen": "yes"}}})
    client.apply(config_map("a", {"y": "1"}), "other")
    live = client.apply(config_map("a", {}), "helm")
    assert live["data"] == {"y": "1", "z": "1"}
    assert live["metadata"]["annotations"] == {"seen": "yes"}


def test_list_items_are_owned_individually(client: Client) -> None:
    client.apply(deployment("a", container("main", A="1", B="1"), container("side")), "helm")
    sidecar = {"spec": {"template": {"spec": {"containers": [container("injected")]}}}}
    client.patch("Deployment", "a", sidecar, STRATEGIC)
    live = client.apply(deployment("a", container("main", "image:2", B="2")), "helm")
    assert images(live) == {"main": "image:2", "injected": "image:1"}
    assert env(live) == {"B": "2"}


def test_a_field_of_another_manager_is_a_conflict(client: Client) -> None:
    """An autoscaler sets the replicas that a chart sets too."""
    client.apply(deployment("a", container("main"), replicas=2), "helm")
    client.patch("Deployment", "a", {"spec": {"replicas": 5}}, below="scale")
    with pytest.raises(Refused) as refused:
        client.apply(deployment("a", container("main"), replicas=2), "helm")
    assert refused.value.code == 409
    assert str(refused.value) == (
        "Apply failed with 1 conflict: conflict with \"tests\" with subresource 'scale': .spec.replicas"
    )
    client.apply(deployment("a", container("main"), replicas=5), "helm")  # the same value is none
    live = client.apply(deployment("a", container("main"), replicas=3), "helm", force=True)
    assert live["spec"]["replicas"] == 3
    assert "f:replicas" not in owned(live, "tests")


def test_a_field_released_by_one_of_two_owners_stays(client: Client) -> None:
    """So a chart can leave the replicas to an autoscaler."""
    client.apply(deployment("a", container("main"), replicas=2), "helm")
    client.patch("Deployment", "a", {"spec": {"replicas": 5}}, below="scale")
    live = client.apply(deployment("a", container("main")), "helm")
    assert live["spec"]["replicas"] == 5


def test_a_map_may_be_filled_and_emptied(client: Client) -> None:
    """As a volume of no particular size, and then of one, and back."""
    for source in ({}, {"sizeLimit": "1Gi"}, {}, {"medium": "Memory"}):
        body = deployment("a", container("main"))
        body["spec"]["template"]["spec"]["volumes"] = [{"name": "tmp", "emptyDir": source}]
        live = client.apply(body, "helm")
        assert live["spec"]["template"]["spec"]["volumes"] == [{"name": "tmp", "emptyDir": source}]


def test_a_duplicate_item_is_refused(client: Client) -> None:
    main = container("main", A="1")
    main["env"].append({"name": "A", "value": "2"})
    with pytest.raises(Refused) as refused:
        client.apply(deployment("a", main), "helm")
    assert refused.value.code == 422
    assert '.spec.template.spec.containers[name="main"].env[name="A"]: duplicate' in str(refused.value)


def test_applying_the_same_again_changes_nothing(client: Client) -> None:
    body = deployment("a", container("main", A="1"), replicas=2)
    assert client.apply(body, "helm") == client.apply(body, "helm")


def test_a_strategic_patch_merges_items(client: Client) -> None:
    client.create(deployment("a", container("main", A="1"), container("side")))
    new = [container("main", "image:2", B="2"), {"name": "side", "$patch": "delete"}]
    live = client.patch("Deployment", "a", {"spec": {"template": {"spec": {"containers": new}}}}, STRATEGIC)
    assert images(live) == {"main": "image:2"}
    assert env(live) == {"A": "1", "B": "2"}


def test_a_merge_patch_replaces_lists(client: Client) -> None:
    client.create(deployment("a", container("main", A="1"), container("side")))
    new = {"spec": {"template": {"spec": {"containers": [container("main")]}}}}
    live = client.patch("Deployment", "a", new, MERGE_PATCH)
    assert (images(live), env(live)) == ({"main": "image:1"}, {})


def test_custom_objects_refuse_strategic_patches(client: Client) -> None:
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "a"}, "spec": {}}
    client.create(cluster)
    with pytest.raises(Refused) as refused:
        client.patch("RayCluster", "a", {"spec": {"suspend": True}}, STRATEGIC)
    assert refused.value.code == 415


def test_field_sets_round_trip_through_their_encoding() -> None:
    fields = set(fields_of(deployment("a", container("main", A="1"), replicas=1)))
    assert set(decode(encode(fields))) == fields
    assert len(fields) > 8


@pytest.mark.parametrize("seed", range(5))
def test_the_last_applied_fields_win_after_any_history(client: Client, seed: int) -> None:
    """Two managers with fields of their own apply whatever they like: at the end is exactly what both want."""
    rng = random.Random(seed)
    wanted: dict[str, Json] = {}
    for _ in range(12):
        manager = rng.choice(("helm", "other"))
        names = rng.sample(range(6), rng.randrange(1, 5))
        body = deployment("a", *(container(f"{manager}-{name}", f"image:{rng.randrange(3)}") for name in names))
        wanted[manager] = copy.deepcopy(body)
        live = client.apply(body, manager)
        assert images(live) == {name: image for each in wanted.values() for name, image in images(each).items()}

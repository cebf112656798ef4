"""scripts/kind.sh, as far as it can be checked without a cluster: its values, its pods and its upgrade."""

from pathlib import Path
from typing import Any

import yaml

from tests.helm import charts
from tests.helm.schema import schemas

FOLDER = charts.CHART.parents[1] / "scripts" / "kind"
VERSION = "v1.34.0"
LABEL = "baton"


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content


def values(**more: Any) -> dict[str, Any]:
    return charts.merged(charts.example("cpu"), load("values.yaml"), more)


def test_every_pod_finds_a_node_of_the_cluster() -> None:
    labels = [node["labels"][LABEL] for node in load("cluster.yaml")["nodes"] if "labels" in node]
    objects = charts.render(values())
    for each in objects:
        schemas.check(each, VERSION)
    selected = {name: each["spec"]["nodeSelector"][LABEL] for name, each in charts.pod_templates(objects).items()}
    assert set(selected.values()) == set(labels)
    pools = [name for name, label in selected.items() if label == "pool"]
    assert {name.rpartition("/")[2] for name in pools} == {"prefill", "decode"}
    assert labels.count("pool") == 2  # one node may be lost


def test_the_load_runs_the_image_of_the_routers() -> None:
    pod = load("load.yaml")
    schemas.check(pod, VERSION)
    [container] = pod["spec"]["containers"]
    router = charts.pod_templates(charts.render(values()))["Deployment/baton-router"]
    assert container["image"] == router["spec"]["containers"][0]["image"]


def test_the_upgrade_builds_a_second_cluster_and_leaves_routers_and_registry() -> None:
    secret = {"auth": {"existingSecret": "registry"}}  # as the cluster has one, whose password an upgrade keeps
    before = charts.pod_templates(charts.render(values(redis=secret)))
    upgraded = values(redis=secret, decode={"podAnnotations": {"upgraded": "yes"}})
    after = charts.pod_templates(charts.render(upgraded))
    assert [name for name in before if before[name] != after[name]] == ["RayService/baton/decode"]
    script = (Path(FOLDER).parent / "kind.sh").read_text(encoding="utf-8")
    assert "decode.podAnnotations.upgraded=yes" in script

"""How the model comes to where it is loaded."""

import json
from typing import Any

import pytest
import yaml

from tests.helm import charts
from tests.helm.pods import POOLS, rendered


def router_config(objects: list[charts.Manifest]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    return found


@pytest.mark.parametrize(
    ("values", "volume"),
    [
        ({"sizeLimit": "7Gi"}, {"emptyDir": {"sizeLimit": "7Gi"}}),  # a router's has no weights, and 1 GiB
        ({"type": "pvc"}, {"persistentVolumeClaim": {"claimName": "baton-models"}}),
        ({"type": "pvc", "pvc": {"existingClaim": "mine"}}, {"persistentVolumeClaim": {"claimName": "mine"}}),
        ({"type": "hostPath", "hostPath": "/m"}, {"hostPath": {"path": "/m", "type": "Directory"}}),
    ],
)
def test_the_models_volume_follows_the_values(values: dict[str, Any], volume: dict[str, Any]) -> None:
    objects = rendered({"modelCache": values})
    for name in ("Deployment/baton-router", "RayService/baton/prefill"):
        spec = charts.pod_templates(objects)[name]["spec"]
        small = "router" in name and "emptyDir" in volume
        assert {"name": "models", **({"emptyDir": {"sizeLimit": "1Gi"}} if small else volume)} in spec["volumes"]
        [fetch] = spec["initContainers"]
        without = ["--without-weights"] if "router" in name and "persistentVolumeClaim" not in volume else []
        model = ["Qwen/Qwen3-0.6B", "/models/Qwen/Qwen3-0.6B"]
        assert fetch["command"] == ["baton", "fetch", *model, *without]
    claims = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert len(claims) == (volume == {"persistentVolumeClaim": {"claimName": "baton-models"}})
    assert all(each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for each in claims)


def test_with_a_download_job_other_pods_wait_and_cannot_write() -> None:
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


def test_a_local_model_is_not_downloaded() -> None:
    objects = rendered({"model": "/models/llama/", "modelCache": {"type": "hostPath", "hostPath": "/data"}})
    for template in charts.pod_templates(objects).values():
        assert "initContainers" not in template["spec"]
    assert charts.serve_config(objects)["applications"][0]["args"]["model"] == "/models/llama"


def test_a_read_only_claim_is_mounted_read_only() -> None:
    claim = {"type": "pvc", "pvc": {"existingClaim": "mine"}, "readOnly": True}
    objects = rendered({"model": "/models/llama", "modelCache": claim})
    for name in ("Deployment/baton-router", *(f"RayService/baton/{pool}" for pool in POOLS)):
        volumes = charts.pod_templates(objects)[name]["spec"]["volumes"]
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "mine", "readOnly": True}} in volumes


def test_a_jobs_name_depends_on_model_and_image() -> None:
    """It cannot be changed."""
    cache = {"modelCache": {"type": "pvc", "job": {"enabled": True}}}
    jobs = [charts.only(rendered(cache, more), "Job") for more in ({}, {"model": "a/b"}, {"image": {"tag": "2"}})]
    assert len({each["metadata"]["name"] for each in jobs}) == 3
    assert charts.only(rendered(cache, is_anew=True), "Job") == jobs[0]
    bounds = charts.only(rendered(cache, {"decode": {"maxReplicas": 9}}), "Job")
    assert bounds == jobs[0]


def test_only_downloading_containers_get_the_hub_token() -> None:
    objects = rendered({"modelCache": {"hubToken": {"existingSecret": "hub"}, "hubEndpoint": "https://mirror"}})
    for template in charts.pod_templates(objects).values():
        for container in charts.containers(template):
            names = {each["name"] for each in container.get("env", ())}
            assert ({"HF_TOKEN", "HF_ENDPOINT"} <= names) is (container["name"] == "fetch")


def test_downloading_containers_get_extra_variables() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    objects = rendered({"modelCache": {"type": "pvc", "job": {"enabled": True}, "extraEnv": [proxy]}})
    for template in charts.pod_templates(objects).values():
        for container in charts.containers(template):
            assert (proxy in container.get("env", ())) is (container["name"] == "fetch")


def test_a_revision_has_its_own_directory() -> None:
    """Pods of the former revision may still read theirs."""
    objects = rendered({"revision": "refs/pr/1"})
    path = "/models/Qwen/Qwen3-0.6B@refs--pr--1"
    for name in ("Deployment/baton-router", *(f"RayService/baton/{pool}" for pool in POOLS)):
        [fetch] = charts.pod_templates(objects)[name]["spec"]["initContainers"]
        assert fetch["command"][2:5] == ["Qwen/Qwen3-0.6B", path, "--revision=refs/pr/1"]
    arguments = charts.serve_config(objects)["applications"][0]["args"]
    assert (arguments["model"], arguments["served_model_name"]) == (path, "Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("has_job", [False, True])
def test_another_tokenizer_is_downloaded_next_to_the_model(has_job: bool) -> None:
    job = {"modelCache": {"type": "pvc", "job": {"enabled": has_job}}}
    objects = rendered({"tokenizer": "a/b", "tokenizerRevision": "v1"} | job)
    wanted = ["baton", "fetch", "a/b", "/models/tokenizers/a/b@v1", "--revision=v1", "--without-weights"]
    templates = charts.pod_templates(objects)
    for name in ("Deployment/baton-router", *(f"RayService/baton/{pool}" for pool in POOLS)):
        model, tokenizer = templates[name]["spec"]["initContainers"]
        assert model["command"][2] == "Qwen/Qwen3-0.6B"
        assert tokenizer["command"] == [*wanted, *(["--wait"] if has_job else [])]
    jobs = [each for name, each in templates.items() if name.startswith("Job/")]
    assert [[each["command"] for each in job["spec"]["containers"]][1:] for job in jobs] == [[wanted]] * has_job
    assert charts.serve_config(objects)["applications"][0]["args"]["tokenizer"] == "/models/tokenizers/a/b@v1"
    assert router_config(objects)["tokenizer"] == "/models/tokenizers/a/b@v1"


def test_a_tokenizer_alone_is_downloaded_for_a_local_model() -> None:
    cache = {"modelCache": {"type": "hostPath", "hostPath": "/data"}}
    objects = rendered({"model": "/models/llama", "tokenizer": "a/b"} | cache)
    for name in ("Deployment/baton-router", *(f"RayService/baton/{pool}" for pool in POOLS)):
        [fetch] = charts.pod_templates(objects)[name]["spec"]["initContainers"]
        assert fetch["name"] == "fetch-tokenizer"
    local = rendered({"model": "/models/llama", "tokenizer": "/models/tokenizer/"} | cache)
    assert all("initContainers" not in each["spec"] for each in charts.pod_templates(local).values())
    assert router_config(local)["tokenizer"] == "/models/tokenizer"


def test_overrides_of_the_models_config_reach_routers_and_workers() -> None:
    overrides = {"rope_scaling": {"rope_type": "yarn", "factor": 4, "rope_theta": 1000000}}
    objects = rendered({"engine": {"hfOverrides": overrides}})
    arguments = charts.serve_config(objects)["applications"][0]["args"]
    for text in (arguments["engine"]["hf_overrides"], router_config(objects)["hf_overrides"]):
        assert json.loads(text) == overrides
        assert "1000000" in text


def test_speculative_decoding_reaches_workers() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4}
    arguments = charts.serve_config(rendered({"engine": {"speculativeConfig": config}}))["applications"][0]["args"]
    assert json.loads(arguments["engine"]["speculative_config"]) == config

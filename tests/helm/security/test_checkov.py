"""Checkov's rules for Kubernetes, in a virtual environment of its own: it does not go together with ours."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.helm import charts
from tests.helm.cases import CASES

CHECKOV = Path(__file__).resolve().parents[3] / ".venv" / "checkov" / "bin" / "checkov"
# What is let pass, where (a part of the resource's name), and why.
ALLOWED: dict[tuple[str, str], str] = {
    ("CKV_K8S_11", "router"): "a limit of cores would slow streams down; the HPA adds routers",
    ("CKV_K8S_11", "redis"): "one thread, and all routers wait for it",
    ("CKV_K8S_15", ""): "an image goes by its digest, or by a tag that is not given twice",
    ("CKV_K8S_43", ""): "an image is one's own: its digest is a value",
    ("CKV_K8S_40", ""): "1000 is the image's user, as in Ray's own images; it is a value",
    ("CKV_K8S_25", "rayservice-baton-"): "IPC_LOCK of workers with RDMA, which pins memory",
    ("CKV_K8S_35", "router"): "BATON_REGISTRY: the URL with its password is on no command line and in no ConfigMap",
    ("CKV_K8S_35", "redis"): "redis-cli of the probe takes its password from the environment alone",
    ("CKV_K8S_35", "rayservice-baton-"): "HF_TOKEN of the container that fetches the model",
    ("CKV_K8S_35", "fetch"): "HF_TOKEN, as above",
    ("CKV_K8S_38", "head"): "the autoscaler asks the API server",
    ("CKV_K8S_8", "test"): "it runs to its end",
    ("CKV_K8S_9", "test"): "it serves nothing",
}

pytestmark = pytest.mark.skipif(not CHECKOV.exists(), reason="no Checkov here: `make test` installs it")


def checked(case: str) -> Iterator[charts.Manifest]:
    """The objects, with each of Ray's pods in place of the RayService, which Checkov does not know."""
    objects = charts.render(CASES[case])
    yield from (each for each in objects if each["kind"] != "RayService")
    for name, template in charts.pod_templates(objects).items():
        if name.startswith("RayService/"):
            metadata = {**template["metadata"], "name": name.lower().replace("/", "-"), "namespace": "serving"}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.mark.slow
def test_checkov_finds_only_accepted_issues(tmp_path: Path) -> None:
    for case in ("default", "openshift", "rdma", "everything"):
        (tmp_path / f"{case}.yaml").write_text(yaml.safe_dump_all(checked(case)))
    command = [CHECKOV, "--framework", "kubernetes", "--compact", "--quiet", "--skip-download", "--output", "json"]
    run = subprocess.run([*command, "--directory", tmp_path], capture_output=True, text=True, timeout=120, check=False)
    report = json.loads(run.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["passed"] > 1000
    used, faults = set(), []
    for failed in report["results"]["failed_checks"]:
        found = {key for key in ALLOWED if key[0] == failed["check_id"] and key[1] in failed["resource"]}
        used |= found
        if not found:
            faults.append(f"{failed['resource']}: {failed['check_id']} {failed['check_name']}")
    assert faults == []
    assert used == set(ALLOWED), "what is let pass and does not occur"

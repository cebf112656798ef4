"""No pod may do more than it has to."""

from collections.abc import Iterator

import pytest

from tests.helm import charts
from tests.helm.cases import CASES

READ_ONLY_SECRETS = 0o440

WRITABLE = {"/tmp", "/dev/shm", "/models", "/data", "/dev/hugepages"}


def pods(case: str) -> Iterator[tuple[str, charts.Manifest]]:
    """Each pod's template, with a name for people."""
    yield from charts.pod_templates(charts.render(CASES[case])).items()


@pytest.mark.parametrize("case", CASES)
def test_every_container_is_restricted(case: str) -> None:
    for name, template in pods(case):
        spec = template["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        ids = {key: security[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in security}
        assert len(ids) == (0 if case == "openshift" else 3), name
        assert all(each > 0 for each in ids.values()), name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not any(spec.get(key) for key in ("hostIPC", "hostPID", "hostNetwork")), name
        for container in charts.containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert "privileged" not in context, name
            assert context["capabilities"]["drop"] == ["ALL"], name
            added = context["capabilities"].get("add", [])
            is_rdma_worker = case == "rdma" and container["name"] == "ray-worker"
            assert added == (["IPC_LOCK"] if is_rdma_worker else []), name


def test_the_heads_autoscaler_container_is_restricted_too() -> None:
    service = charts.only(charts.render(charts.MODEL), "RayService")
    options = service["spec"]["rayClusterConfig"]["autoscalerOptions"]
    assert options["securityContext"]["readOnlyRootFilesystem"] is True
    assert options["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [mount] = options["volumeMounts"]
    volumes = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["volumes"]
    assert mount["mountPath"] == "/tmp"
    assert mount["name"] in {each["name"] for each in volumes}


@pytest.mark.parametrize("case", CASES)
def test_mounts_use_existing_volumes_and_only_scratch_is_writable(case: str) -> None:
    for name, template in pods(case):
        volumes = {each["name"]: each for each in template["spec"].get("volumes", ())}
        used = {"autoscaler-tmp"} & set(volumes)
        for container in charts.containers(template):
            for mount in container.get("volumeMounts", ()):
                assert mount["name"] in volumes, name
                used.add(mount["name"])
                assert mount.get("readOnly") or mount["mountPath"] in WRITABLE, (name, mount)
                if not mount.get("readOnly") and mount["mountPath"] == "/models":
                    assert container["name"] == "fetch"
        assert used == set(volumes), name
        for volume in volumes.values():
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == READ_ONLY_SECRETS, name
            if volume.get("emptyDir", {}).get("medium") != "HugePages-2Mi" and "emptyDir" in volume:
                assert volume["emptyDir"]["sizeLimit"], name


@pytest.mark.parametrize("case", CASES)
def test_only_the_head_has_a_token_for_the_api_server(case: str) -> None:
    for name, template in pods(case):
        assert template["spec"]["automountServiceAccountToken"] is name.endswith("/head")


@pytest.mark.parametrize("case", [each for each in CASES if each != "everything"])
def test_no_permissions_beyond_the_namespace(case: str) -> None:
    kinds = {each["kind"] for each in charts.render(CASES[case])}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def test_permissions_are_granted_only_if_used() -> None:
    budget = charts.merged(charts.MODEL, {"autoscaling": {"clusterBudget": {"enabled": True}}})
    objects = charts.render(budget)
    assert not [each for each in objects if each["kind"].startswith("Cluster")]
    [subject] = charts.only(objects, "RoleBinding")["subjects"]
    head = charts.pod_templates(objects)["RayService/baton/head"]
    assert subject["name"] == head["spec"]["serviceAccountName"]


def test_only_workers_see_gpus() -> None:
    """The image asks for all that a node has."""
    objects = charts.render(charts.MODEL)
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    blind = set()
    for template in charts.pod_templates(objects).values():
        blind |= {each["name"] for each in charts.containers(template) if void in each.get("env", ())}
    assert blind == {"router", "fetch", "ray-head", "handover"}
    cluster = charts.only(objects, "RayService")["spec"]["rayClusterConfig"]
    assert void in cluster["autoscalerOptions"]["env"]
    assert cluster["headGroupSpec"]["resources"] == {"CPU": "0", "GPU": "0"}


def test_images_use_their_digest_if_given() -> None:
    digest = "sha256:" + "1" * 64
    values = {"image": {"repository": "r.example.com/baton", "digest": digest}, "redis": {"image": {"digest": digest}}}
    for name, template in charts.pod_templates(charts.render(charts.merged(charts.MODEL, values))).items():
        assert all(each["image"].endswith(f"@{digest}") for each in charts.containers(template)), name


def test_ray_accepts_commands_only_with_a_token() -> None:
    service = charts.only(charts.render(charts.MODEL), "RayService")
    assert service["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}

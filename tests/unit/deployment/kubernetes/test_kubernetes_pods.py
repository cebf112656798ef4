"""Requests of pods, and the reasons for which pods do not run."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.kubernetes.api_objects import Pod
from baton.deployment.kubernetes.pod_use import PodUse, pod_use, requested
from baton.deployment.kubernetes.unready_pod import UnreadyPod
from tests.unit.deployment.kubernetes_objects import (
    DECODE,
    NAMESPACE,
    PREFILL,
    RESOURCE,
    Json,
    container,
    kubernetes_settings,
    pod,
)

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def use(written: Json) -> PodUse | None:
    return pod_use(Pod.model_validate(written), kubernetes_settings(), NAMESPACE)


def test_own_pods_have_a_pools_labels_and_the_own_namespace() -> None:
    more = {"pod-template-hash": "x"}
    assert use(pod("a", PREFILL | more, "2", on="n0")) == PodUse("n0", Decimal(2), ByPool(True, False))
    assert use(pod("b", DECODE, "2", on="n0")) == PodUse("n0", Decimal(2), ByPool(False, True))
    assert use(pod("c", {"app": "baton"}, "2", on="n0")) == PodUse("n0", Decimal(2), ByPool(False, False))
    assert use(pod("d", PREFILL, "2", on="n0", namespace="else")) == PodUse("n0", Decimal(2), ByPool(False, False))


def test_foreign_pods_without_requests_are_skipped() -> None:
    assert use(pod("a", {}, None, on="n0")) is None
    assert use(pod("a", PREFILL, None, on="n0")) == PodUse("n0", Decimal(0), ByPool(True, False))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pods_take_nothing(phase: str) -> None:
    assert use(pod("a", PREFILL, "2", on="n0", phase=phase)) is None


def test_a_terminating_pod_keeps_its_resources() -> None:
    assert use(pod("a", PREFILL, "2", on="n0", deleted=True)) == PodUse("n0", Decimal(2), ByPool(True, False))


def test_a_nominated_pod_takes_its_nodes_resources() -> None:
    found = use(pod("a", {}, "2", status={"nominatedNodeName": "n3"}))
    assert found == PodUse("n3", Decimal(2), ByPool(False, False))


def test_an_invalid_amount_names_its_pod() -> None:
    with pytest.raises(ValueError, match="pod serving/a: '1Q' is not a quantity"):
        use(pod("a", {}, "1Q"))


@pytest.mark.parametrize(
    ("spec", "amount"),
    [
        ({"containers": [container("1"), container("2")]}, 3),
        ({"containers": [container("1"), container(None)]}, 1),
        ({"containers": [container("1")], "initContainers": [container("4"), container("2")]}, 4),
        ({"containers": [container("3")], "initContainers": [container("2")]}, 3),
        ({"containers": [container("1")], "initContainers": [container("2", "Always")]}, 3),
        # The sidecar runs together with the init container after it, but not with the one before it.
        ({"containers": [container("1")], "initContainers": [container("2", "Always"), container("4")]}, 6),
        ({"containers": [container("1")], "initContainers": [container("4"), container("2", "Always")]}, 4),
        ({"containers": [container("1")], "overhead": {RESOURCE: "1", "cpu": "2"}}, 2),
        ({"containers": [container("1")], "resources": {"requests": {RESOURCE: "3"}}, "overhead": {RESOURCE: "1"}}, 4),
        ({"containers": [container("500m"), container("1.5")]}, 2),
    ],
)
def test_a_pods_request_follows_kubernetes_rules(spec: Json, amount: int) -> None:
    assert requested(Pod.model_validate(pod("a", {}, spec=spec)).spec, RESOURCE) == amount


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=5),
)
def test_a_request_is_the_largest_sum_that_runs_at_one_time(main: list[int], before: list[tuple[int, bool]]) -> None:
    running, moments = 0, [0]
    for amount, stays in before:
        moments.append(running + amount)
        running += amount * stays
    moments.append(running + sum(main))
    spec = {
        "containers": [container(str(each)) for each in main],
        "initContainers": [container(str(amount), "Always" if stays else None) for amount, stays in before],
    }
    assert requested(Pod.model_validate(pod("a", {}, spec=spec)).spec, RESOURCE) == max(moments)


def waiting(reason: str, message: str = "", **more: object) -> Json:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}, **more}


RUNS = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
CRASHED = {"restartCount": 7, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
NOT_READY = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:04:00Z"}


@pytest.mark.parametrize(
    ("on", "status", "line"),
    [
        (
            None,
            {"conditions": [UNSCHEDULABLE]},
            "a does not run for 300 s: Unschedulable: 0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
        ),
        (
            None,
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
            "a does not run for 300 s: SchedulingGated",
        ),
        (None, {}, "a does not run for 300 s: Pending"),
        (
            "n0",
            {"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]},
            "a does not run on n0 for 300 s: ContainerCreating",
        ),
        (
            "n0",
            {
                "phase": "Pending",
                "containerStatuses": [RUNS, waiting("ContainerCreating"), waiting("ImagePullBackOff", "Back-off")],
            },
            "a does not run on n0 for 300 s: ImagePullBackOff: Back-off",
        ),
        (
            "n0",
            {
                "phase": "Pending",
                "initContainerStatuses": [waiting("ErrImagePull", "not found")],
                "containerStatuses": [waiting("PodInitializing")],
            },
            "a does not run on n0 for 300 s: ErrImagePull: not found",
        ),
        (
            "n0",
            {
                "phase": "Pending",
                "containerStatuses": [waiting("CreateContainerConfigError", 'secret "key" not found')],
            },
            'a does not run on n0 for 300 s: CreateContainerConfigError: secret "key" not found',
        ),
        (
            "n0",
            {
                "phase": "Running",
                "conditions": [NOT_READY],
                "containerStatuses": [waiting("CrashLoopBackOff", "back-off 5m0s", **CRASHED)],
            },
            "a does not run on n0 for 60 s: CrashLoopBackOff: back-off 5m0s; main ended 7 times, last OOMKilled 137",
        ),
        (
            "n0",
            {"phase": "Unknown", "reason": "NodeLost", "message": "Node n0 is unresponsive"},
            "a does not run on n0 for 300 s: NodeLost: Node n0 is unresponsive",
        ),
    ],
)
def test_the_reason_for_which_a_pod_does_not_run(on: str | None, status: Json, line: str) -> None:
    found = use(pod("a", PREFILL, on=on, status=status))
    assert found is not None
    assert found.unready is not None
    assert found.unready.line(NOW) == line


def test_running_terminating_and_foreign_pods_are_not_reported() -> None:
    stuck: Json = {"phase": "Pending", "containerStatuses": [waiting("ImagePullBackOff")]}
    for written in (
        pod("a", PREFILL, on="n0", status={"containerStatuses": [RUNS], "conditions": [NOT_READY]}),
        pod("a", PREFILL, on="n0", status=stuck, deleted=True),
        pod("a", {}, on="n0", status=stuck),
    ):
        found = use(written)
        assert found is not None
        assert found.unready is None


def test_a_clock_behind_the_clusters_gives_no_negative_wait() -> None:
    unready = UnreadyPod("a", None, datetime(2026, 1, 1, 0, 6, tzinfo=UTC), "Pending", "")
    assert unready.line(NOW) == "a does not run for 0 s: Pending"

"""Reading the budget from an API server, with the real client over TLS."""

import importlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from baton.deployment.kubernetes import budget_reader
from baton.deployment.kubernetes.budget_reader import BudgetReader, open_budget
from baton.deployment.kubernetes.settings import KubernetesSettings
from tests.marks import each_value
from tests.unit.deployment.kubernetes_api import CUT, DRIP, HANG, Cluster, Fault, Status, serving
from tests.unit.deployment.kubernetes_objects import (
    DECODE,
    PAGE,
    PREFILL,
    Json,
    kubernetes_settings,
    node,
    page_blocks,
    pod,
    scaling_settings,
)

LONGEST_S = 30.0  # for a query with a limit of 0.4 s, on a busy machine; slow responses would take more than 60 s
Open = Callable[..., BudgetReader]
LogLines = Callable[[], list[str]]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes of eight GPUs, of which Baton's pods have three and other pods four."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # the client takes a proxy from the environment
    with serving(tmp_path) as cluster:
        cluster.nodes = [node("n0"), node("n1"), node("n2", cordoned=True)]
        cluster.pods = [
            pod("prefill-0", PREFILL, "1", on="n0"),
            pod("decode-0", DECODE, "2", on="n0"),
            pod("other-0", {"app": "other"}, "4", on="n1", namespace="else"),
            pod("ended-0", DECODE, "8", on="n1", phase="Succeeded"),
        ]
        yield cluster


@pytest.fixture
def open_(cluster: Cluster, clock: Clock) -> Iterator[Open]:
    """Return a function that opens readers; they are closed at the end."""
    opened: list[BudgetReader] = []

    def open_reader(settings: KubernetesSettings | None = None) -> BudgetReader:
        reader = open_budget(
            settings or kubernetes_settings(timeout_s=60.0),
            scaling_settings(),
            cluster.environ,
            cluster.service_account,
            clock,
        )
        assert reader is not None
        opened.append(reader)
        return reader

    yield open_reader
    for reader in opened:
        reader.close()


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> LogLines:
    """Return a function that returns the reader's log lines so far."""
    caplog.set_level("INFO", logger=budget_reader.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name == budget_reader.__name__]


def test_the_budget_of_a_cluster(cluster: Cluster, open_: Open) -> None:
    budget = open_().read()
    assert budget.error is None
    assert budget.age_s == 0
    assert (budget.placed_gpus, budget.pending_gpus, budget.free_gpus, budget.num_nodes) == (3, 0, 9, 2)
    assert budget.settings.budget_gpus == 12
    assert budget.settings.prefill.max_replicas == 10
    assert budget.settings.decode.max_replicas == 5
    assert [(call.resource, call.namespace) for call in cluster.calls] == [("nodes", None), ("pods", None)]
    for call in cluster.calls:
        assert call.query["resourceVersion"] == "0"
        assert call.query["resourceVersionMatch"] == "NotOlderThan"
    assert cluster.calls[1].query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


def test_pods_that_do_not_run_are_listed_longest_wait_first(cluster: Cluster, open_: Open) -> None:
    late, early = pod("a", PREFILL), pod("b", DECODE, "2")
    late["metadata"]["creationTimestamp"] = "2026-01-01T00:00:30Z"
    cluster.pods += [late, early]
    budget = open_().read()
    assert [each.name for each in budget.unready] == ["b", "a"]
    assert budget.pending_gpus == 3
    assert budget.settings.budget_gpus == 12


@pytest.mark.parametrize("minds_limit", [True, False])
def test_lists_are_read_page_by_page(cluster: Cluster, open_: Open, minds_limit: bool) -> None:
    cluster.most_items, cluster.minds_limit = 2, minds_limit
    assert open_().read().settings.budget_gpus == 12
    calls = cluster.calls
    assert [call.resource for call in calls] == (
        ["nodes", "nodes", "pods", "pods"] if minds_limit else ["nodes", "pods"]
    )
    for call in calls:
        assert call.query["limit"] == "500"
        assert ("continue" in call.query) != ("resourceVersion" in call.query)


def test_an_expired_page_restarts_the_list(cluster: Cluster, open_: Open) -> None:
    cluster.most_items = 2
    cluster.faults = [None, Status(410, "Expired", "The provided continue parameter is too old")]
    budget = open_().read()
    assert (budget.error, budget.settings.budget_gpus) == (None, 12)
    assert ["continue" in call.query for call in cluster.calls] == [False, True, False, True, False, True]


def test_pages_that_always_expire_are_given_up(cluster: Cluster, open_: Open) -> None:
    cluster.most_items = 2
    cluster.faults = [None, Status(410, "Expired")] * 3
    budget = open_().read()
    assert budget.error == "the list expired between its pages 3 times"
    assert len(cluster.calls) == 6


def test_the_cluster_is_queried_once_per_refresh_s(cluster: Cluster, open_: Open, clock: Clock) -> None:
    reader = open_()
    reader.read()
    cluster.pods.clear()
    clock.now_s += 9.9
    budget = reader.read()
    assert (len(cluster.calls), budget.placed_gpus, round(budget.age_s or 0, 1)) == (2, 3, 9.9)
    clock.now_s += 0.2
    assert (reader.read().placed_gpus, len(cluster.calls)) == (0, 4)


FAULTS: list[tuple[Fault, str]] = [
    (Status(401, "Unauthorized", "Unauthorized"), "401 Unauthorized: Unauthorized"),
    (Status(403, "Forbidden", "no right"), "403 Forbidden: no right"),
    (Status(429, "TooManyRequests", "later"), "429 Too Many Requests: later"),
    (Status(500, "InternalError", "etcdserver: leader changed"), "500 Internal Server Error: etcdserver: leader"),
    (Status(502, "", body=b"<html>Bad Gateway</html>"), "502 Bad Gateway$"),
    (Status(200, "", body=b"<html>Welcome</html>"), "invalid response: Invalid JSON"),
    (
        Status(200, "", body=b'{"items": [{"metadata": {}}]}'),
        r"invalid response: items\.0\.metadata\.name: Field",
    ),
    (CUT, "ProtocolError|IncompleteRead"),
]


@each_value
@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=[words for _, words in FAULTS])
@pytest.mark.parametrize("num_before", [0, 1], ids=["nodes", "pods"])
def test_the_last_result_stays_valid_after_errors(
    cluster: Cluster, open_: Open, clock: Clock, fault: Fault, words: str, num_before: int
) -> None:
    reader = open_()
    before = reader.read()
    cluster.faults = [*[None] * num_before, fault]
    clock.now_s += 10
    during = reader.read()
    assert during.error is not None
    assert re.search(words, during.error)
    assert during == replace(before, age_s=10.0, error=during.error)
    assert during.line() == f"{before.line()}; as of 10 s ago: {during.error}"
    cluster.nodes.append(node("n3"))
    clock.now_s += 10
    after = reader.read()
    assert (after.error, after.age_s, after.settings.budget_gpus) == (None, 0, 20)


@pytest.mark.parametrize("fault", [HANG, DRIP])
@pytest.mark.parametrize("num_before", [0, 1], ids=["nodes", "pods"])
def test_a_list_over_the_time_limit_is_discarded(cluster: Cluster, open_: Open, fault: Fault, num_before: int) -> None:
    importlib.import_module("kubernetes.client")  # the time of this import does not count here
    cluster.faults = [*[None] * num_before, fault]
    began_s = time.monotonic()
    budget = open_(kubernetes_settings(timeout_s=0.4)).read()
    assert time.monotonic() - began_s < LONGEST_S
    assert budget.age_s is None
    assert budget.error is not None
    assert re.search("timed out|took too long|took longer", budget.error)


def test_before_the_first_result_the_operators_budget_applies(cluster: Cluster, open_: Open) -> None:
    cluster.faults = [Status(503, "ServiceUnavailable", "starting")]
    budget = open_().read()
    assert (budget.settings, budget.age_s, budget.unready) == (scaling_settings(), None, ())
    assert budget.line() == "100 GPUs, as configured: 503 Service Unavailable: starting"


def test_an_invalid_amount_is_reported_with_its_object(cluster: Cluster, open_: Open) -> None:
    cluster.pods.append(pod("odd", {}, "1Q", on="n0", namespace="else"))
    assert open_().read().error == "invalid response: pod else/odd: '1Q' is not a quantity"


def test_an_api_server_that_does_not_listen_is_reported(cluster: Cluster, open_: Open) -> None:
    cluster.environ["KUBERNETES_SERVICE_PORT"] = "1"
    error = open_().read().error
    assert error is not None
    assert "Connection refused" in error


def test_an_incomplete_service_account_is_reported(cluster: Cluster, open_: Open) -> None:
    reader = open_()
    (cluster.service_account / "ca.crt").unlink()
    assert reader.read().error == f"{cluster.service_account}: Service certification file does not exist."


def test_a_loss_is_logged_once(cluster: Cluster, open_: Open, clock: Clock, log_lines: LogLines) -> None:
    reader = open_()
    cluster.faults = [Status(503, "ServiceUnavailable", "starting")] * 2
    for _ in range(4):
        reader.read()
        clock.now_s += 10
    assert [line for line in log_lines() if "budget" not in line] == [
        "cannot read the cluster's free capacity, keeping the last values: 503 Service Unavailable: starting",
        "the cluster's free capacity can be read again",
    ]


def test_a_change_is_logged_once(cluster: Cluster, open_: Open, clock: Clock, log_lines: LogLines) -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    cluster.pods += [pod("new", PREFILL), pod("stuck", DECODE, "20", status={"conditions": [waiting]})]
    reader = open_()
    for _ in range(3):
        reader.read()
        clock.now_s += 10
    budget, stuck = log_lines()
    assert budget.startswith(
        "the budget is now 24 GPUs: Baton's pods have 3 and wait for 21, 9 are free on 2 nodes; at most"
    )
    assert re.fullmatch(r"stuck does not run for \d+ s: Unschedulable: 0/3 nodes", stuck)
    cluster.pods.pop()
    reader.read()
    assert [line[:25] for line in log_lines()[2:]] == ["the budget is now 12 GPUs"]


def test_outside_kubernetes_there_is_no_reader_and_no_import(tmp_path: Path) -> None:
    settings, scaling = kubernetes_settings(), scaling_settings()
    assert open_budget(settings, scaling, {}) is None
    assert open_budget(settings, scaling, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) is None
    code = "import baton.deployment.kubernetes.budget_reader, sys; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PAGE.parents[1], timeout=60).returncode == 0


def rights(own_namespace_only: bool) -> list[Json]:
    """Return the RBAC objects of the documentation page."""
    return [each for each in page_blocks() if each[0].get("kind") == "ServiceAccount"][own_namespace_only]


@pytest.mark.parametrize("own_namespace_only", [False, True])
def test_the_documented_permissions_are_enough(cluster: Cluster, open_: Open, own_namespace_only: bool) -> None:
    cluster.rights = rights(own_namespace_only)
    budget = open_(kubernetes_settings(own_namespace_only=own_namespace_only, timeout_s=60.0)).read()
    assert budget.error is None
    # The reader then does not see what other namespaces use.
    assert budget.settings.budget_gpus == (16 if own_namespace_only else 12)


@pytest.mark.parametrize("own_namespace_only", [False, True])
@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_every_documented_permission_is_needed(
    cluster: Cluster, open_: Open, own_namespace_only: bool, resource: str
) -> None:
    cluster.rights = rights(own_namespace_only)
    for rule in (rule for each in cluster.rights for rule in each.get("rules", ())):
        assert (rule["apiGroups"], rule["verbs"]) == ([""], ["list"])
        assert set(rule["resources"]) <= {"nodes", "pods"}
        rule["resources"] = [each for each in rule["resources"] if each != resource]
    error = open_(kubernetes_settings(own_namespace_only=own_namespace_only, timeout_s=60.0)).read().error
    assert error is not None
    assert error.startswith(f"403 Forbidden: {resource} is forbidden")

"""A budget whose settings change between queries."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.deployment.kubernetes.budget_reader import BudgetReader, open_budget
from baton.deployment.ray.live_budget import LiveBudget
from tests.unit.deployment.kubernetes_api import Cluster, serving
from tests.unit.deployment.kubernetes_objects import kubernetes_settings, node, scaling_settings


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Serve a cluster with one node of eight GPUs."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # the client takes a proxy from the environment
    with serving(tmp_path) as cluster:
        cluster.nodes = [node("n0")]
        yield cluster


def test_the_cluster_is_queried_with_the_current_settings(cluster: Cluster) -> None:
    versions = [scaling_settings(budget_gpus=100)]
    opened: list[BudgetReader | None] = []

    def read_by(scaling: object) -> BudgetReader | None:
        assert scaling is versions[-1]
        kubernetes = kubernetes_settings(timeout_s=60.0)
        opened.append(open_budget(kubernetes, versions[-1], cluster.environ, cluster.service_account))
        return opened[-1]

    budget = LiveBudget(lambda: versions[-1], read_by)
    assert [budget().budget_gpus, budget().budget_gpus] == [8, 8]
    versions.append(scaling_settings(budget_gpus=5))
    assert [budget().budget_gpus, budget().budget_gpus] == [5, 5]
    assert len(opened) == 2  # one reader for each change of the settings, not for each query
    budget.close()


def test_without_a_cluster_the_operators_settings_apply() -> None:
    versions = [scaling_settings(budget_gpus=100)]
    budget = LiveBudget(lambda: versions[-1], lambda _: None)
    assert budget() is versions[0]
    versions.append(scaling_settings(budget_gpus=5))
    assert budget() is versions[1]

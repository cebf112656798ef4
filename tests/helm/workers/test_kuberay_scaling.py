"""Ray's autoscaler sizes the worker groups of an installed release: its own code, with the rights of the head."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.settings import RaySettings
from tests.helm import charts
from tests.helm.api_server.client import Client
from tests.helm.api_server.errors import Json
from tests.helm.api_server.server import ApiServer
from tests.helm.charts import CHART, MODEL, merged
from tests.helm.clusters import NAMESPACE, cluster
from tests.helm.releases import helm
from tests.marks import slow_except

pytest.importorskip("ray.serve")  # which warns when it is imported for the first time

from ray.autoscaler._private.kuberay import node_provider
from ray.autoscaler._private.kuberay.autoscaling_config import AutoscalingConfigProducer
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import KubeRayProvider
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil

HEAD = "headgroup"
POOLS = ("prefill", "decode")
EQUALS = 1  # LabelSelectorOperator.LABEL_OPERATOR_IN


class Cluster:
    """An installed release's RayCluster, and Ray's own eyes and hands on it."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self._server, self._client = server, client
        [self.service] = client.list("RayService", NAMESPACE)
        self.name: str = self.resource()["metadata"]["name"]
        self._num_requests = 0
        self.provider = KubeRayProvider(
            self.name, {"namespace": NAMESPACE}, None, node_provider.KubernetesHttpApiClient(NAMESPACE)
        )

    def resource(self) -> Json:
        """As the server has it."""
        self._server.settle()
        [found] = self._client.list("RayCluster", NAMESPACE)
        return found

    def group(self, name: str) -> Json:
        """A worker group's specification."""
        return next(each for each in self.resource()["spec"]["workerGroupSpecs"] if each["groupName"] == name)

    def nodes(self) -> Counter[str]:
        """How many nodes of each group run, as Ray sees it."""
        self._server.settle()
        instances = self.provider.get_non_terminated().values()
        assert all(each.is_running for each in instances)
        return Counter(each.node_type for each in instances)

    def launch(self, shape: dict[str, int]) -> list[str]:
        """What went wrong."""
        self._server.settle()
        self._num_requests += 1
        self.provider.launch(shape, f"request-{self._num_requests}")
        return [str(each) for each in self.provider.poll_errors()]

    def terminate(self, group: str, num: int) -> list[str]:
        """What went wrong; those are ended that come first by their names."""
        self._server.settle()
        instances = self.provider.get_non_terminated()
        chosen = sorted(name for name, each in instances.items() if each.node_type == group)[:num]
        self._num_requests += 1
        self.provider.terminate(chosen, f"request-{self._num_requests}")
        return [str(each) for each in self.provider.poll_errors()]

    def config(self) -> AutoscalingConfig:
        """What Ray derives from the RayCluster."""
        return AutoscalingConfig(AutoscalingConfigProducer(self.name, NAMESPACE)(), skip_content_hash=True)

    def settings(self) -> RaySettings:
        """What the application is told, and so what its replicas ask for."""
        [application] = charts.serve_config([self.service])["applications"]
        return read_ray_settings(application["args"], {})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with cluster(tmp_path) as running:
        yield running


def act_as(account: str, server: ApiServer, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client then finds the files that a pod of that service account has."""
    server.service_account(NAMESPACE, account, directory)
    monkeypatch.setattr(node_provider, "IN_CLUSTER_TOKEN_PATH", str(directory / "token"))
    monkeypatch.setattr(node_provider, "IN_CLUSTER_CA_CERT_PATH", str(directory / "ca.crt"))
    here = partial(node_provider.url_from_resource, kubernetes_host=server.url)
    monkeypatch.setattr(node_provider, "url_from_resource", here)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


VALUES = ["default", "cpu", "moe"]
DEFAULT_VALUES = pytest.mark.parametrize("installed", slow_except(VALUES, {"default"}), indirect=True)


@pytest.fixture(params=slow_except(VALUES, {"default"}))
def installed(
    request: pytest.FixtureRequest, server: ApiServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """Ray's autoscaler runs beside the head, with its service account."""
    values = MODEL if request.param == "default" else charts.example(request.param)
    with helm(server, NAMESPACE) as releases:
        releases.install(CHART, "baton", values)
    server.settle()
    [resource] = client.list("RayCluster", NAMESPACE)
    head = resource["spec"]["headGroupSpec"]["template"]["spec"]
    act_as(head["serviceAccountName"], server, tmp_path / "pod", monkeypatch)
    return Cluster(server, client)


def test_nodes_of_each_group_are_added_and_removed(installed: Cluster) -> None:
    before = installed.nodes()
    assert before == {HEAD: 1, **{name: installed.group(name)["replicas"] for name in POOLS}}
    for name in POOLS:
        assert installed.launch({name: 1}) == []
        assert installed.nodes() == before + Counter({name: 1})
        assert installed.terminate(name, 2) == []
        assert installed.nodes() == before - Counter({name: 1})
        assert installed.launch({name: 1}) == []
        assert installed.nodes() == before
        assert installed.group(name)["scaleStrategy"] == {"workersToDelete": []}


@DEFAULT_VALUES
def test_a_group_can_lose_all_its_nodes(installed: Cluster) -> None:
    for name in POOLS:
        assert installed.terminate(name, installed.nodes()[name]) == []
    assert installed.nodes() == {HEAD: 1}


@pytest.mark.slow
@DEFAULT_VALUES
def test_both_groups_grow_to_their_maximum_at_the_same_time(installed: Cluster) -> None:
    most = {name: installed.group(name)["maxReplicas"] for name in POOLS}
    wanted = {name: most[name] - installed.group(name)["replicas"] + 1 for name in POOLS}
    errors = installed.launch(wanted)
    assert len(errors) == 2
    assert all("capped by maxReplicas" in each for each in errors)
    assert installed.nodes() == {HEAD: 1, **most}


@pytest.mark.parametrize("pool", POOLS)
def test_replicas_without_a_place_get_nodes_of_their_own_group(installed: Cluster, pool: str) -> None:
    """From what a replica asks Ray for to the pod that it will run in, with nothing but Ray's own code between."""
    settings, config = installed.settings(), installed.config()
    options = settings.deployments[pool]
    needs = {"CPU": options.replicas.num_cpus, "GPU": settings.num_gpus(pool)}
    labels = [(key, EQUALS, [value]) for key, value in options.label_selector.items()]
    replica = ResourceRequestUtil.make({name: need for name, need in needs.items() if need}, None, [labels])
    num_replicas = 2 * options.replicas.max_replicas_per_node
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=config.get_node_type_configs(),
        max_num_nodes=config.get_max_num_nodes(),
        resource_requests=ResourceRequestUtil.group_by_count([replica] * num_replicas),
    )
    reply = ResourceDemandScheduler(event_logger=None).schedule(request)
    assert not reply.infeasible_resource_requests
    shape = {each.instance_type: each.count for each in reply.to_launch if each.instance_type != HEAD}
    assert shape == {pool: 2}
    before = installed.nodes()
    installed.launch({pool: 1})
    assert installed.nodes() == before + Counter({pool: 1})


@pytest.mark.slow
def test_bounds_that_are_raised_later_are_reached(
    server: ApiServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group of a running cluster has room for them already; and what Ray has launched outlives the upgrade."""
    with helm(server, NAMESPACE) as releases:
        releases.install(CHART, "baton", MODEL)
        server.settle()
        [resource] = client.list("RayCluster", NAMESPACE)
        account = resource["spec"]["headGroupSpec"]["template"]["spec"]["serviceAccountName"]
        act_as(account, server, tmp_path / "pod", monkeypatch)
        installed = Cluster(server, client)
        installed.launch({"decode": 2})
        grown = installed.nodes()
        releases.upgrade(CHART, "baton", merged(MODEL, {"decode": {"maxReplicas": 8}}))
    assert installed.nodes() == grown == {HEAD: 1, "prefill": 1, "decode": 3}
    assert installed.launch({"decode": 5}) == []
    assert installed.nodes()["decode"] == 8


@DEFAULT_VALUES
def test_other_accounts_may_not_scale(
    installed: Cluster, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the workers, which run the model's code."""
    workers = installed.group("decode")["template"]["spec"]["serviceAccountName"]
    monkeypatch.undo()
    act_as(workers, server, tmp_path / "worker", monkeypatch)
    provider = KubeRayProvider(
        installed.name, {"namespace": NAMESPACE}, None, node_provider.KubernetesHttpApiClient(NAMESPACE)
    )
    provider.launch({"decode": 1}, "request")
    [error] = provider.poll_errors()
    assert "403 Client Error" in str(error)

"""Reader of the budget of the pod's own cluster.

The steps of a refresh:

1. List the nodes, then all pods that have not ended, and reduce each to its capacity or requests.
2. Compute the budget from these, by pure functions.
3. If a list fails, keep the last budget, with its age and the error; before the first one, the configured number.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.kubernetes.api_server import ApiServer, ApiServerError
from baton.deployment.kubernetes.cluster_budget import ClusterBudget, cluster_budget
from baton.deployment.kubernetes.cluster_use import ClusterUse
from baton.deployment.kubernetes.node_use import node_use
from baton.deployment.kubernetes.pod_use import pod_use
from baton.deployment.kubernetes.settings import KubernetesSettings
from baton.extras import KUBERNETES

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # mounted by Kubernetes into each pod


class BudgetReader:
    """Latest state of one cluster; changes are logged. Calls block, and must not run concurrently."""

    def __init__(
        self,
        connect: Callable[[], ApiServer],
        namespace: str,
        settings: KubernetesSettings,
        scaling: ScalingSettings,
        clock: Callable[[], float],
    ) -> None:
        """Connect lazily, by `connect`. Baton's pods are in `namespace`. Raises ValueError for invalid settings."""
        settings.check()
        settings.check_pod_sizes(scaling)
        self._connect = connect
        self._namespace = namespace
        self._settings = settings
        self._scaling = scaling
        self._clock = clock
        self._server: ApiServer | None = None
        self._use: ClusterUse | None = None
        self._used_s = 0.0  # time of `_use`
        self._refreshed_s: float | None = None
        self._error: str | None = None
        self._logged_gpus: int | None = None
        self._logged_pods: frozenset[tuple[str, str]] = frozenset()  # names and reasons of pods that do not run

    def read(self) -> ClusterBudget:
        """Return the current budget, read from the cluster once in `refresh_s`. Does not raise its errors."""
        now_s = self._clock()
        is_due = self._refreshed_s is None or now_s - self._refreshed_s >= self._settings.refresh_s
        if is_due:
            self._refreshed_s = now_s
            self._refresh(now_s)
        if self._use is None:
            return ClusterBudget(settings=self._scaling, error=self._error)
        age_s = self._clock() - self._used_s
        budget = cluster_budget(self._use, self._settings, self._scaling, age_s, self._error)
        if is_due and self._error is None:
            self._log_changes(budget)
        return budget

    def close(self) -> None:
        """Close the connections."""
        if self._server is not None:
            self._server.close()

    def _refresh(self, now_s: float) -> None:
        try:
            if self._server is None:
                self._server = self._connect()
            self._use = self._read_use(self._server)
        except ApiServerError as error:
            if self._error is None:
                logger.warning("cannot read the cluster's free capacity, keeping the last values: %s", error)
            self._error = str(error)
            return
        if self._error is not None:
            logger.info("the cluster's free capacity can be read again")
        self._used_s, self._error = now_s, None

    def _log_changes(self, budget: ClusterBudget) -> None:
        """Log a new budget, and each pod that has newly failed to start."""
        if budget.settings.budget_gpus != self._logged_gpus:
            logger.info("the budget is now %s", budget.line())
        stuck = [pod for pod in budget.unready if not pod.is_starting]
        for pod in stuck:
            if (pod.name, pod.reason) not in self._logged_pods:
                logger.warning("%s", pod.line(datetime.now(UTC)))
        self._logged_gpus = budget.settings.budget_gpus
        self._logged_pods = frozenset((pod.name, pod.reason) for pod in stuck)

    def _read_use(self, server: ApiServer) -> ClusterUse:
        nodes = server.nodes(lambda node: node_use(node, self._settings))
        namespace = self._namespace if self._settings.own_namespace_only else None
        pods = server.pods(lambda pod: pod_use(pod, self._settings, self._namespace), namespace)
        return ClusterUse(tuple(nodes), tuple(pod for pod in pods if pod is not None))


def open_budget(
    settings: KubernetesSettings,
    scaling: ScalingSettings,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
) -> BudgetReader | None:
    """Return the reader for the pod's own cluster; None outside Kubernetes or without a service account.

    Does not connect or import the client yet. Raises ValueError for invalid settings, or if the client is missing.
    """
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    if not (service_account / "token").exists():
        logger.info("no service account token at %s: the cluster's free capacity is not read", service_account)
        return None
    if not KUBERNETES.is_installed:
        raise ValueError(KUBERNETES.missing("a budget from the Kubernetes cluster"))
    namespace = settings.namespace or (service_account / "namespace").read_text().strip()

    def connect() -> ApiServer:
        return ApiServer.of_pod(environ, service_account, settings.timeout_s)

    return BudgetReader(connect, namespace, settings, scaling, clock)

"""Reads the budget of the cluster that we run in.

A question:

1. The nodes are listed, then all pods that have not ended; each is reduced to what it has or takes at once.
2. From these comes the budget, by pure functions.
3. Where a list is not had, the last answer holds on, with its age and the error; before the first one the operator's
   number does.
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

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes puts a pod's own


class BudgetReader:
    """Owns what is known of one cluster, and logs what changes. It blocks while it asks: one call at a time."""

    def __init__(
        self,
        connect: Callable[[], ApiServer],
        namespace: str,
        settings: KubernetesSettings,
        scaling: ScalingSettings,
        clock: Callable[[], float],
    ) -> None:
        """`connect` is called when the cluster is asked for the first time; our pods are in `namespace`."""
        settings.check()
        settings.check_beside(scaling)
        self._connect = connect
        self._namespace = namespace
        self._settings = settings
        self._scaling = scaling
        self._clock = clock
        self._server: ApiServer | None = None
        self._use: ClusterUse | None = None
        self._used_s = 0.0  # when the cluster was as last known
        self._asked_s: float | None = None
        self._error: str | None = None
        self._told_gpus: int | None = None
        self._told_pods: frozenset[tuple[str, str]] = frozenset()  # names and reasons of those that do not run

    def read(self) -> ClusterBudget:
        """The budget now; the cluster is asked once in `refresh_s`, and whatever it does is no exception."""
        now_s = self._clock()
        is_due = self._asked_s is None or now_s - self._asked_s >= self._settings.refresh_s
        if is_due:
            self._asked_s = now_s
            self._ask(now_s)
        if self._use is None:
            return ClusterBudget(settings=self._scaling, error=self._error)
        age_s = self._clock() - self._used_s
        budget = cluster_budget(self._use, self._settings, self._scaling, age_s, self._error)
        if is_due and self._error is None:
            self._tell(budget)
        return budget

    def close(self) -> None:
        """Ends the connections."""
        if self._server is not None:
            self._server.close()

    def _ask(self, now_s: float) -> None:
        try:
            if self._server is None:
                self._server = self._connect()
            self._use = self._look(self._server)
        except ApiServerError as error:
            if self._error is None:
                logger.warning("the cluster cannot be asked what is free, the last answer holds on: %s", error)
            self._error = str(error)
            return
        if self._error is not None:
            logger.info("the cluster answers again")
        self._used_s, self._error = now_s, None

    def _tell(self, budget: ClusterBudget) -> None:
        """Says each thing once, when it is new."""
        if budget.settings.budget_gpus != self._told_gpus:
            logger.info("the budget is now %s", budget.line())
        stuck = [pod for pod in budget.unready if not pod.is_on_its_way]
        for pod in stuck:
            if (pod.name, pod.reason) not in self._told_pods:
                logger.warning("%s", pod.line(datetime.now(UTC)))
        self._told_gpus = budget.settings.budget_gpus
        self._told_pods = frozenset((pod.name, pod.reason) for pod in stuck)

    def _look(self, server: ApiServer) -> ClusterUse:
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
    """The reader for the cluster that we run in; None outside Kubernetes, and for a pod without a service account.

    Asks nothing yet, and imports no client. Raises ValueError for settings that make no sense, and without the client.
    """
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    if not (service_account / "token").exists():
        logger.info("no service account's token at %s: the cluster is not asked what is free", service_account)
        return None
    if not KUBERNETES.is_installed:
        raise ValueError(KUBERNETES.missing("a budget from the Kubernetes cluster"))
    namespace = settings.namespace or (service_account / "namespace").read_text().strip()

    def connect() -> ApiServer:
        return ApiServer.of_pod(environ, service_account, settings.timeout_s)

    return BudgetReader(connect, namespace, settings, scaling, clock)

"""Budget of Baton's pods in a cluster."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.kubernetes.cluster_use import ClusterUse
from baton.deployment.kubernetes.room import num_replicas, room
from baton.deployment.kubernetes.settings import KubernetesSettings
from baton.deployment.kubernetes.unready_pod import UnreadyPod

LONGEST_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBudget:
    """Scaling settings limited to the cluster's capacity, and the numbers that they follow from."""

    settings: ScalingSettings  # to plan with
    placed_gpus: int = 0  # of Baton's scheduled pods
    pending_gpus: int = 0  # requested by Baton's pending pods
    free_gpus: int = 0  # available to further whole pods
    num_nodes: int = 0  # nodes that accept Baton's pods
    unready: tuple[UnreadyPod, ...] = ()  # Baton's pods, the longest waiting first
    age_s: float | None = None  # of the numbers; None: never read, and the settings are the configured ones
    error: str | None = None  # of the last read

    def line(self) -> str:
        """Return the budget as one line for the log."""
        if self.age_s is None:
            return f"{self.settings.budget_gpus} GPUs, as configured: {self.error}"
        most = self.settings.limits.map(lambda limits: limits.max_replicas)
        kept = "" if self.error is None else f"; as of {self.age_s:.0f} s ago: {self.error}"
        return (
            f"{self.settings.budget_gpus} GPUs: Baton's pods have {self.placed_gpus} and wait for {self.pending_gpus}, "
            f"{self.free_gpus} are free on {self.num_nodes} nodes; "
            f"at most {most.prefill} prefill and {most.decode} decode replicas{kept}"
        )


def cluster_budget(
    use: ClusterUse,
    settings: KubernetesSettings,
    scaling: ScalingSettings,
    age_s: float = 0.0,
    error: str | None = None,
) -> ClusterBudget:
    """Return the budget: GPUs of scheduled pods plus the larger of free and pending GPUs, up to the configured number.

    Pending pods would use the free GPUs, so the two are not added. A lack of capacity lowers neither the budget nor a
    pool's maximum below what scheduled and pending pods have, or below the configured minimum.
    """
    sizes = settings.pools.map(lambda pods: pods.gpus_per_pod)
    nodes = room(use.nodes, use.pods)
    free_gpus = sum(node.filled(sizes) for node in nodes)
    fitting = [node.pods(sizes) for node in nodes]
    num_fitting = ByPool(sum(each.prefill for each in fitting), sum(each.decode for each in fitting))
    num_pods = use.num_placed.zip(use.num_pending.zip(num_fitting).map(max)).map(sum)
    most = num_pods.zip(sizes.zip(scaling.limits)).map(
        lambda each: _within(each[1][1], num_replicas(each[0], each[1][0], each[1][1].gpus_per_replica))
    )
    least_gpus = sum(limits.gpus_per_replica * limits.min_replicas for limits in scaling.limits.both())
    there_gpus = use.placed_gpus + max(free_gpus, use.pending_gpus)
    unready = [pod.unready for pod in use.pods if pod.unready is not None]
    return ClusterBudget(
        settings=replace(
            scaling,
            budget_gpus=max(least_gpus, min(scaling.budget_gpus, there_gpus)),
            prefill=most.prefill,
            decode=most.decode,
        ),
        placed_gpus=use.placed_gpus,
        pending_gpus=use.pending_gpus,
        free_gpus=free_gpus,
        num_nodes=len(nodes),
        unready=tuple(sorted(unready, key=lambda pod: (pod.since or LONGEST_AGO, pod.name))),
        age_s=age_s,
        error=error,
    )


def _within(limits: PoolLimits, num_possible: int) -> PoolLimits:
    """Return the limits with at most `num_possible` replicas, but not below the minimum."""
    most = num_possible if limits.max_replicas is None else min(num_possible, limits.max_replicas)
    return replace(limits, max_replicas=max(limits.min_replicas, most))

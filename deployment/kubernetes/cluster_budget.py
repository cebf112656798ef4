"""What our pools may use of a cluster."""

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
    """The planner's settings within what the cluster has, and what they were made from."""

    settings: ScalingSettings  # to plan with
    placed_gpus: int = 0  # that pods of ours have
    pending_gpus: int = 0  # that pods of ours wait for
    free_gpus: int = 0  # that whole pods of ours could still get
    num_nodes: int = 0  # that take pods of ours
    unready: tuple[UnreadyPod, ...] = ()  # pods of ours, the longest waiting first
    age_s: float | None = None  # of all this; None: the cluster never answered, and the settings are the operator's
    error: str | None = None  # why the cluster could not be asked the last time

    def line(self) -> str:
        """For people."""
        if self.age_s is None:
            return f"{self.settings.budget_gpus} GPUs, as configured: {self.error}"
        most = self.settings.limits.map(lambda limits: limits.max_replicas)
        kept = "" if self.error is None else f"; as of {self.age_s:.0f} s ago: {self.error}"
        return (
            f"{self.settings.budget_gpus} GPUs: ours have {self.placed_gpus} and wait for {self.pending_gpus}, "
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
    """What ours have, and what is free or what they wait for, if that is more; never beyond the operator's number.

    What waits would take of what is free, so it is not added to it. Neither the budget nor a pool's most replicas goes
    below what ours have and wait for, or below the operator's least, because of what the cluster lacks.
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


def _within(limits: PoolLimits, num_there: int) -> PoolLimits:
    """The limits with at most so many replicas, but not fewer than the least."""
    most = num_there if limits.max_replicas is None else min(num_there, limits.max_replicas)
    return replace(limits, max_replicas=max(limits.min_replicas, most))

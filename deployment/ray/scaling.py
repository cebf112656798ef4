"""The sizes of both pools as Ray Serve's application-level autoscaling policy.

Serve's controller calls the policy ten times a second and waits for it, so it only plans: what it plans from, another
thread keeps at hand. Serve sends this file's own content to the controller, and imports everything else there.
"""

import logging
import os
import time
import weakref
from dataclasses import replace

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.decision import Decision
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.autoscaling.state import ScalingState
from baton.deployment.kubernetes.budget_reader import open_budget
from baton.deployment.ray.live_budget import LiveBudget
from baton.deployment.ray.pool_progress import ProgressWatch
from baton.deployment.ray.pools_observer import Budget, PoolsObserver, Sighting
from baton.deployment.ray.scaling_options import ScalingOptions, read_options
from baton.deployment.ray.serve_context import Contexts, PolicyState, ServeContext, Targets, serve_conflicts

logger = logging.getLogger("ray.serve.baton")  # below the logger whose file Serve shows

POOLS = ByPool("prefill", "decode")  # names of the deployments
STALE_S = 10.0  # a sighting that is older says nothing of now
TELL_S = 60.0  # between two lines that say the same


class PoolsPolicy:
    """Owns what is remembered from one look to the next. Whatever goes wrong, the sizes stay and the log says why."""

    def __init__(self, **options: object) -> None:
        """`policy_kwargs` of the application's `autoscaling_policy`; docs/autoscaling.md explains each.

        It raises nothing: Serve would go on without it, and size the pools by requests that it does not see.
        """
        self._observer: PoolsObserver | None = None
        self._fault = ""  # why there is no observer
        self._asks_cluster = options.get("kubernetes") is not None
        self._state: ScalingState | None = None
        self._watches = POOLS.map(lambda _: ProgressWatch())
        self._planned: Sighting | None = None  # what the targets follow from
        self._targets = ByPool(0, 0)
        self._told_s: dict[str, float] = {}  # when each line was said last
        try:
            self._observer = make_observer(read_options(options))
        except (ValueError, OSError) as error:
            self._fault = f"autoscaling_policy.policy_kwargs: {error}"
            return
        weakref.finalize(self, self._observer.stop)
        self._observer.start()

    def __call__(self, contexts: Contexts) -> tuple[Targets, PolicyState]:
        """Replicas of either deployment, and nothing for Serve to remember. A deployment left out stays as it is."""
        try:
            keys = {key.name: key for key in contexts}
            if missing := [name for name in POOLS.both() if name not in keys]:
                self._tell(f"sizes stay: {' and '.join(missing)} should have an autoscaling_config")
                return {}, {}
            if not self._looked(contexts, POOLS.map(lambda name: contexts[keys[name]])):
                return {}, {}
            return {keys[name]: size for name, size in zip(POOLS.both(), self._targets.both(), strict=True)}, {}
        except Exception as error:
            self._tell(f"sizes stay: the plan has failed with {type(error).__name__}", error)
            return {}, {}

    def _looked(self, contexts: Contexts, pools: ByPool[ServeContext]) -> bool:
        """Whether the targets are of now; they are planned anew after each sighting."""
        sighting = self._observer.latest if self._observer is not None else None
        if sighting is None or time.monotonic() - sighting.seen_s > STALE_S:
            self._planned = None
            self._tell(f"sizes stay: {self._observer.error if self._observer is not None else self._fault}")
            return False
        if sighting is self._planned:
            return True
        settings = within(sighting.settings, pools)
        if self._asks_cluster:
            settings = affordable(settings)
        try:
            settings.check()
        except ValueError as error:
            self._tell(f"sizes stay: {error}")
            return False
        for line in serve_conflicts(contexts, POOLS):
            self._tell(line)
        if any(worker.role == "both" for worker in sighting.pools.workers.decode):
            self._tell("sizes stay: there are colocated workers, which belong to neither pool")
            return False
        decision = self._plan(sighting, settings, pools.map(lambda pool: pool.target_num_replicas))
        targets, self._targets = self._targets, ByPool(decision.prefill.target, decision.decode.target)
        if targets != self._targets:
            logger.info("%s", decision.reason)
        self._planned = sighting
        return True

    def _plan(self, sighting: Sighting, settings: ScalingSettings, targets: ByPool[int]) -> Decision:
        """The decision after one more sighting of pools that have these targets."""
        ready = sighting.pools.ready.map(lambda pool: [each.incarnation for each in pool])
        looks = self._watches.zip(targets.zip(ready))
        progress = looks.map(lambda look: look[0].look(*look[1], sighting.seen_s))
        snapshot = sighting.pools.snapshot(progress, settings.slo.quantile, sighting.seen_s)
        decision, self._state = plan_pools(snapshot, self._state, settings)
        return decision

    def _tell(self, line: str, error: Exception | None = None) -> None:
        """Warns, but not ten times a second; with the stack of an error."""
        now_s = time.monotonic()
        self._told_s = {each: told_s for each, told_s in self._told_s.items() if now_s - told_s < TELL_S}
        if line not in self._told_s:
            self._told_s[line] = now_s
            logger.log(logging.WARNING if error is None else logging.ERROR, "%s", line, exc_info=error)


def within(settings: ScalingSettings, pools: ByPool[ServeContext]) -> ScalingSettings:
    """The settings, with the deployments' own bounds. A pool that may be empty is so only when nothing comes at all."""
    prefill, decode = settings.limits.zip(pools).map(lambda each: _bounded(*each)).both()
    return replace(settings, prefill=prefill, decode=decode)


def affordable(settings: ScalingSettings) -> ScalingSettings:
    """The same where a cluster has less left than the smallest pools need: these are kept all the same."""
    least = sum(limits.gpus_per_replica * limits.min_replicas for limits in settings.limits.both())
    return replace(settings, budget_gpus=max(settings.budget_gpus, least))


def _bounded(limits: PoolLimits, pool: ServeContext) -> PoolLimits:
    least = max(limits.min_replicas, pool.capacity_adjusted_min_replicas)
    most = pool.capacity_adjusted_max_replicas
    if limits.max_replicas is not None:
        most = max(least, min(most, limits.max_replicas))
    return replace(limits, min_replicas=least, max_replicas=most)


def make_observer(options: ScalingOptions) -> PoolsObserver:
    """One that is not started. Raises ValueError for what the cluster cannot be asked with."""
    return PoolsObserver(options.registry, options.model, options.settings, _budget(options))


def _budget(options: ScalingOptions) -> Budget:
    """What the cluster has, if it is asked; else what the operator says."""
    read = (lambda: options.settings) if options.file is None else options.file.read
    kubernetes = options.kubernetes
    if kubernetes is None:
        return read
    return LiveBudget(read, lambda scaling: open_budget(kubernetes, scaling, os.environ))

"""Ray Serve's application-level autoscaling policy for both pools.

Serve's controller calls the policy ten times a second and blocks on it, so the policy only plans, from observations
that a background thread collects. Serve sends the source of this file to the controller, and imports all other modules
there.
"""

import logging
import os
import time
import weakref
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.decision import Decision
from baton.deployment.autoscaling.explanation import explain
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.autoscaling.state import ScalingState
from baton.deployment.kubernetes.budget_reader import open_budget
from baton.deployment.ray.application import application_name
from baton.deployment.ray.live_budget import LiveBudget
from baton.deployment.ray.observed_pools import ObservedPools
from baton.deployment.ray.pool_progress import ProgressWatch
from baton.deployment.ray.pools_observer import Budget, Observation, PoolsObserver
from baton.deployment.ray.role_changes import RoleChanges, bounded_offset, bounded_sizes, change_role
from baton.deployment.ray.scaling_options import ScalingOptions, read_options
from baton.deployment.ray.serve_context import Contexts, PolicyState, ServeContext, Targets, serve_conflicts
from baton.membership.registry.plan_report import MAX_REASON_CHARS, PlanReport, PoolPlan
from baton.membership.registry.router_report import WorkerReport
from baton.settings.names import Role

logger = logging.getLogger("ray.serve.baton")  # child of the logger whose file Serve shows

POOLS = ByPool("prefill", "decode")  # deployment names
STALE_S = 10.0  # older observations are not planned from
REPEAT_LOG_S = 60.0  # minimum interval between equal log lines
EXPLAIN_S = 60.0  # interval of the lines that explain the current sizes


class PoolsPolicy:
    """State of the autoscaler between calls. On any error the pool sizes stay and the reason is logged."""

    def __init__(self, **options: object) -> None:
        """`policy_kwargs` of the application's `autoscaling_policy`; docs/autoscaling.md explains each.

        Raises nothing: Serve would continue without the policy, and size the pools by requests that bypass it.
        """
        self._observer: PoolsObserver | None = None
        self._fault = ""  # why there is no observer
        self._reads_cluster = options.get("kubernetes") is not None
        self._state: ScalingState | None = None
        self._watches = POOLS.map(lambda _: ProgressWatch())
        self._planned: Observation | None = None  # basis of the targets
        self._targets = ByPool(0, 0)
        self._changes: RoleChanges | None = None  # None: there is no observer
        self._offset: int | None = None  # of the last plan (`role_changes.py`)
        self._has_begun = False  # the pools have been as large as those of a cluster that they replace
        self._explained_s: float | None = None  # of the last explanation, or the first plan
        self._logged_s: dict[str, float] = {}  # when each line was last logged
        try:
            given = read_options(options)
            self._observer = make_observer(given)
        except (ValueError, OSError) as error:
            self._fault = f"autoscaling_policy.policy_kwargs: {error}"
            return
        self._changes = RoleChanges(partial(_change_role, self._observer, given))
        weakref.finalize(self, self._observer.stop)
        self._observer.start()

    def __call__(self, contexts: Contexts) -> tuple[Targets, PolicyState]:
        """Return the target sizes, and no state for Serve to keep. Deployments without a target keep their size."""
        try:
            keys = {key.name: key for key in contexts}
            if missing := [name for name in POOLS.both() if name not in keys]:
                self._warn(f"pool sizes unchanged: {' and '.join(missing)} need an autoscaling_config")
                return {}, {}
            if not self._update(contexts, POOLS.map(lambda name: contexts[keys[name]])):
                return {}, {}
            return {keys[name]: size for name, size in zip(POOLS.both(), self._targets.both(), strict=True)}, {}
        except Exception as error:
            self._warn(f"pool sizes unchanged: planning failed with {type(error).__name__}", error)
            return {}, {}

    def _update(self, contexts: Contexts, pools: ByPool[ServeContext]) -> bool:
        """Plan again if there is a new observation. Return whether the targets are up to date."""
        observation = self._observer.latest if self._observer is not None else None
        if observation is None or time.monotonic() - observation.time_s > STALE_S:
            self._planned = None
            self._warn(f"pool sizes unchanged: {self._observer.error if self._observer is not None else self._fault}")
            return False
        if observation is self._planned:
            return True
        assert self._changes is not None
        [app_name] = {key.app_name for key in contexts}
        application = application_name(app_name)
        observed = self._changes.update(observation.pools.of_application(application), observation.time_s)
        for worker in self._changes.arrived:
            watch = self._watches.prefill if worker.role == "prefill" else self._watches.decode
            watch.note_known(worker.incarnation, observation.time_s)
        settings = within(observation.settings, pools)
        if not self._changes.may_begin(observation.time_s):
            settings = replace(settings, flip_s=None)
        if self._reads_cluster:
            settings = affordable(settings)
        if not self._has_begun:
            others = observation.pools.size_elsewhere(application)
            self._has_begun = all(len(own) >= other for own, other in observed.ready.zip(others).both())
            settings = settings if self._has_begun else beginning_at(settings, others)
        try:
            settings.check()
        except ValueError as error:
            self._warn(f"pool sizes unchanged: {error}")
            return False
        for line in serve_conflicts(contexts, POOLS):
            self._warn(line)
        if any(worker.role == "both" for worker in observed.workers.decode):
            self._warn("pool sizes unchanged: there are colocated workers, which belong to neither pool")
            return False
        offset = self._changes.offset(observed)
        targets_now = moved(pools.map(lambda pool: pool.target_num_replicas), -offset)
        decision = self._plan(observed, observation.time_s, settings, targets_now)
        assert self._observer is not None
        self._observer.plan = plan_report(application, observation.model, decision)
        targets, self._targets = self._targets, self._carried_out(decision, observed, settings, pools)
        if targets != self._targets:
            logger.info("%s", decision.reason)
        self._planned = observation
        return True

    def _plan(
        self, observed: ObservedPools, time_s: float, settings: ScalingSettings, targets: ByPool[int]
    ) -> Decision:
        """Plan from the application's pools, observed at `time_s`, with these current targets of the pools."""
        assert self._changes is not None
        ready = observed.ready.map(lambda pool: [each.incarnation for each in pool])
        missing = targets.zip(self._changes.into).map(lambda each: max(0, each[0] - each[1]))
        updates = self._watches.zip(missing.zip(ready))
        progress = self._changes.progress(updates.map(lambda each: each[0].update(*each[1], time_s)), observed)
        snapshot = observed.snapshot(progress, settings.slo.quantile, time_s)
        if self._state is not None and self._offset not in (None, self._changes.offset(observed)):
            self._state = self._state.rebased(snapshot)
        decision, self._state = plan_pools(snapshot, self._state, settings)
        if self._explained_s is None:
            self._explained_s = time_s
        elif time_s - self._explained_s >= EXPLAIN_S:
            self._explained_s = time_s
            logger.info("%s", explain(snapshot, decision, settings))
        return decision

    def _carried_out(
        self, decision: Decision, observed: ObservedPools, settings: ScalingSettings, pools: ByPool[ServeContext]
    ) -> ByPool[int]:
        """Begin the decision's changes of role, and return the sizes of the deployments.

        While a worker changes its role, no deployment shrinks: Serve might stop the last worker that has the role.
        """
        assert self._changes is not None
        sizes, offset = ByPool(decision.prefill.target, decision.decode.target), self._changes.offset(observed)
        least = pools.map(lambda pool: pool.capacity_adjusted_min_replicas)
        most = pools.map(lambda pool: pool.capacity_adjusted_max_replicas)
        if settings.flip_s is not None:
            flipped = offset + decision.flips.to_decode - decision.flips.to_prefill
            offset += self._changes.begin(bounded_offset(flipped, sizes, least, most) - offset, sizes, observed)
        self._offset = offset
        if settings.flip_s is None:  # the offset stays
            targets = bounded_sizes(moved(sizes, offset), least, most)
        else:
            targets = moved(sizes, bounded_offset(offset, sizes, least, most))
        if any(self._changes.into.both()):
            targets = targets.zip(pools).map(lambda each: max(each[0], each[1].target_num_replicas))
        return targets

    def _warn(self, line: str, error: Exception | None = None) -> None:
        """Log a warning, or an error with its stack, at most once per REPEAT_LOG_S."""
        now_s = time.monotonic()
        self._logged_s = {each: time_s for each, time_s in self._logged_s.items() if now_s - time_s < REPEAT_LOG_S}
        if line not in self._logged_s:
            self._logged_s[line] = now_s
            logger.log(logging.WARNING if error is None else logging.ERROR, "%s", line, exc_info=error)


def plan_report(application: str, model: str, decision: Decision) -> PlanReport:
    """Return a decision as routers show it."""
    pools = ByPool(decision.prefill, decision.decode).map(
        lambda pool: PoolPlan(target=pool.target, needed=pool.need, factor=pool.factor)
    )
    return PlanReport(
        application=application,
        model=model,
        time_s=time.time(),
        prefill=pools.prefill,
        decode=pools.decode,
        reason=decision.reason[:MAX_REASON_CHARS],
    )


def moved(sizes: ByPool[int], offset: int) -> ByPool[int]:
    """Return the sizes of the deployments from those of the pools; with a negative offset the reverse."""
    return ByPool(sizes.prefill + offset, sizes.decode - offset)


def _change_role(observer: PoolsObserver, options: ScalingOptions, worker: WorkerReport, role: Role) -> "Future[None]":
    """Begin a worker's change of role, which lasts no longer than a start may."""
    call = change_role(options.tls, worker.address, role, options.settings.start_timeout_s)
    return observer.submit(call)


def within(settings: ScalingSettings, pools: ByPool[ServeContext]) -> ScalingSettings:
    """Apply the deployments' own replica bounds. A pool with a minimum of 0 is empty only without any traffic."""
    prefill, decode = settings.limits.zip(pools).map(lambda each: _bounded(*each)).both()
    return replace(settings, prefill=prefill, decode=decode)


def beginning_at(settings: ScalingSettings, sizes: ByPool[int]) -> ScalingSettings:
    """Raise the pools' minimum sizes to these, as far as their maximum allows; not beyond the budget."""

    def raised(limits: PoolLimits, size: int) -> PoolLimits:
        most = size if limits.max_replicas is None else min(size, limits.max_replicas)
        return replace(limits, min_replicas=max(limits.min_replicas, most))

    prefill, decode = settings.limits.zip(sizes).map(lambda each: raised(*each)).both()
    least = sum(limits.gpus_per_replica * limits.min_replicas for limits in (prefill, decode))
    return replace(settings, prefill=prefill, decode=decode) if least <= settings.budget_gpus else settings


def affordable(settings: ScalingSettings) -> ScalingSettings:
    """Raise the budget to what the minimum pool sizes need, even if the cluster has less left."""
    least = sum(limits.gpus_per_replica * limits.min_replicas for limits in settings.limits.both())
    return replace(settings, budget_gpus=max(settings.budget_gpus, least))


def _bounded(limits: PoolLimits, pool: ServeContext) -> PoolLimits:
    least = max(limits.min_replicas, pool.capacity_adjusted_min_replicas)
    most = pool.capacity_adjusted_max_replicas
    if limits.max_replicas is not None:
        most = max(least, min(most, limits.max_replicas))
    return replace(limits, min_replicas=least, max_replicas=most)


def make_observer(options: ScalingOptions) -> PoolsObserver:
    """Make the observer without starting it. Raises ValueError for invalid cluster settings."""
    return PoolsObserver(options.registry, options.model, options.settings, _budget(options))


def _budget(options: ScalingOptions) -> Budget:
    """Return a function for the budget: the cluster's free capacity if configured, otherwise the operator's limit."""
    read = (lambda: options.settings) if options.file is None else options.file.read
    kubernetes = options.kubernetes
    if kubernetes is None:
        return read
    return LiveBudget(read, lambda scaling: open_budget(kubernetes, scaling, os.environ))

"""Two clusters of one application during an upgrade: each is sized for its own workers."""

from dataclasses import replace
from typing import Any

import pytest

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.ray.observed_pools import ObservedPools
from baton.deployment.ray.scaling import PoolsPolicy, beginning_at
from baton.membership.registry.router_report import RouterReport
from tests.unit.deployment.ray.scaling_rig import ScriptedObserver, pools, replace_name
from tests.unit.deployment.serve_contexts import by_name, contexts


def of_application(report: RouterReport, application: str, **changes: object) -> RouterReport:
    """Return a report whose workers belong to an application."""
    workers = []
    for each in report.workers:
        name = f"{application}/{each.worker_id}"
        own: dict[str, Any] = {"worker_id": name, "incarnation": name, "application": application, **changes}
        workers.append(replace(each, **own))
    return replace(report, workers=tuple(workers))


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_new_cluster_is_sized_while_the_old_one_serves(
    policy: PoolsPolicy, observer: ScriptedObserver, monkeypatch: pytest.MonkeyPatch, is_draining: bool
) -> None:
    """The old cluster's workers are no replicas of the new one, and not its draining ones either."""
    replace_name(monkeypatch, "application_name", lambda app_name: f"new-{app_name}")
    new, old = of_application(pools(rate=5.0), "new-default"), pools(rate=5.0, num_prefill=4, num_decode=3)
    observer.see(new)
    alone = by_name(policy(contexts())[0])
    assert alone["prefill"] > 1
    both = PoolsPolicy(registry="redis://nowhere", budget_gpus=8)
    replaced = of_application(old, "old-default", draining=is_draining)
    observer.see(replace(new, workers=(*new.workers, *replaced.workers)))
    assert by_name(both(contexts())[0]) == (
        alone if is_draining else {"prefill": max(4, alone["prefill"]), "decode": 3}
    )


def test_a_new_cluster_begins_at_the_size_of_the_running_one(
    policy: PoolsPolicy, observer: ScriptedObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_name(monkeypatch, "application_name", lambda app_name: "new")
    old = of_application(pools(num_prefill=3, num_decode=2), "old")
    others = of_application(pools(num_prefill=1, num_decode=3), "other")
    observer.see(replace(old, workers=(*old.workers, *others.workers)))
    assert by_name(policy(contexts())[0]) == {"prefill": 3, "decode": 3}  # the largest of each, not their sum
    new = of_application(pools(num_prefill=3, num_decode=3), "new")
    observer.see(replace(old, workers=(*old.workers, *others.workers, *new.workers)))
    assert by_name(policy(contexts(3, 3))[0]) == {"prefill": 1, "decode": 1}  # the plan's own, from now on
    fewer = of_application(pools(), "new")
    observer.see(replace(old, workers=(*old.workers, *fewer.workers)))
    assert by_name(policy(contexts())[0]) == {"prefill": 1, "decode": 1}


def test_the_bounds_and_the_budget_limit_the_size_at_the_start() -> None:
    settings = ScalingSettings(budget_gpus=5, decode=PoolLimits(max_replicas=2))
    begun = beginning_at(settings, ByPool(3, 4))
    assert (begun.prefill.min_replicas, begun.decode.min_replicas) == (3, 2)
    assert beginning_at(settings, ByPool(4, 4)) == settings


def test_workers_of_routers_that_report_no_application_are_the_policys_own() -> None:
    observed = ObservedPools.of([pools(num_decode=2)])
    assert observed.of_application("new") == observed
    assert observed.size_elsewhere("new") == ByPool(0, 0)


def test_the_old_cluster_keeps_its_size_while_the_new_one_takes_traffic(
    policy: PoolsPolicy, observer: ScriptedObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_name(monkeypatch, "application_name", lambda app_name: "old-default")
    old, new = of_application(pools(rate=5.0), "old-default"), of_application(pools(num_prefill=4), "new-default")
    observer.see(old)
    alone = by_name(policy(contexts())[0])
    observer.see(replace(old, workers=(*old.workers, *new.workers)))
    assert by_name(policy(contexts(**alone))[0]) == alone


def test_latencies_measured_with_a_part_of_the_traffic_are_not_used() -> None:
    own = of_application(pools(), "own", latency={0: 100})
    other = of_application(pools(), "other")
    for others, expected in (((), {0: 100}), (other.workers, {})):
        observed = ObservedPools.of([replace(own, workers=(*own.workers, *others))]).of_application("own")
        assert [each.latency for each in observed.ready.decode] == [expected]
        assert {each.application for each in (*observed.workers.prefill, *observed.workers.decode)} == {"own"}

"""Replicas that are requested and do not start."""

from dataclasses import replace

import pytest

from baton.deployment.autoscaling.snapshot import PoolSnapshot, PoolsSnapshot
from baton.deployment.ray.options import ReplicaOptions
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, pool, sizes, snapshot, traffic

HASTY = replace(SETTINGS, upscale_delay_s=0.0, start_timeout_s=100.0, retry_after_s=60.0, max_retry_after_s=200.0)
LOAD = traffic(19.0, output=10)  # needs 5 replicas for prefill, 1 for decode


def at(now_s: float, prefills: PoolSnapshot, decodes: PoolSnapshot | None = None) -> PoolsSnapshot:
    return snapshot(now_s, LOAD, prefills, decodes or pool(1))


def failed(planner: Planner, from_s: float) -> float:
    """Request two more replicas that do not start; return the time at which they are given up."""
    assert sizes(planner.plan(at(from_s, pool(3)))) == (5, 1)
    starting = pool(3, starting_since_s=(from_s, from_s))
    for second in range(1, int(HASTY.start_timeout_s) + 1):
        assert sizes(planner.plan(at(from_s + second, starting))) == (5, 1)
    end_s = from_s + HASTY.start_timeout_s + 1
    decision = planner.plan(at(end_s, starting))
    assert sizes(decision) == (3, 1)
    assert decision.believed_gpus == 4
    return end_s


def sizes_over(planner: Planner, from_s: float, until_s: float, seen: PoolSnapshot) -> set[tuple[int, int]]:
    found = set()
    for second in range(int(from_s), int(until_s)):
        found.add(sizes(planner.plan(at(float(second), seen))))
    return found


def test_failed_starts_are_given_up_and_retried_after_doubling_pauses() -> None:
    planner = Planner(HASTY)
    end_s = failed(planner, 0.0)
    for wait_s in (60.0, 120.0, 200.0, 200.0):  # doubled, and bounded
        assert sizes_over(planner, end_s + 1, end_s + wait_s, pool(3)) == {(3, 1)}
        end_s = failed(planner, end_s + wait_s)


def test_a_start_within_twice_the_median_is_waited_for() -> None:
    """Starts took 90 s at the median; with a cold cache a start may take twice that."""
    planner = Planner(HASTY)
    planner.plan(at(0.0, pool(3, start_s=90.0)))
    starting = pool(3, starting_since_s=(0.0, 0.0), start_s=90.0)
    assert sizes_over(planner, 1.0, 181.0, starting) == {(5, 1)}
    assert sizes(planner.plan(at(181.0, starting))) == (3, 1)


def test_by_default_a_start_may_take_as_long_as_on_ray() -> None:
    """A replica that is given up while it still loads never starts, however often it is retried."""
    planner = Planner(replace(SETTINGS, upscale_delay_s=0.0))
    planner.plan(at(0.0, pool(3)))
    longest_s = ReplicaOptions().start_timeout_s
    assert sizes_over(planner, 1.0, longest_s, pool(3, starting_since_s=(0.0, 0.0))) == {(5, 1)}


def test_a_lingering_replica_is_not_a_second_failure() -> None:
    planner = Planner(HASTY)
    end_s = failed(planner, 0.0)
    lingering = pool(3, starting_since_s=(0.0,))
    assert sizes_over(planner, end_s + 1, end_s + 60, lingering) == {(3, 1)}
    assert planner.state is not None
    assert planner.state.trouble is not None
    assert planner.state.trouble.until_s == end_s + 60


def test_starts_requested_one_after_the_other_fail_as_one() -> None:
    planner = Planner(HASTY)
    starting = (0.0, 3.0)
    for second in range(105):
        planner.plan(at(float(second), pool(3, starting_since_s=starting)))
    assert planner.state is not None
    assert planner.state.trouble is not None
    assert planner.state.trouble.retry_after_s == 60.0
    assert planner.state.trouble.until_s == 104 + 60
    assert planner.state.grants.sizes.prefill == 3


def test_started_replicas_stay_and_only_the_rest_is_given_up() -> None:
    planner = Planner(HASTY)
    planner.plan(at(0.0, pool(3)))
    sizes_over(planner, 1.0, 100.0, pool(4, starting_since_s=(0.0,)))
    decision = planner.plan(at(101.0, pool(4, starting_since_s=(0.0,))))
    assert sizes(decision) == (4, 1)
    assert decision.believed_gpus == 5


def test_the_other_pool_grows_only_within_the_gpus_that_arrived() -> None:
    planner = Planner(HASTY)
    end_s = failed(planner, 0.0)
    more = replace(at(end_s + 1, pool(3)), traffic=traffic(19.0, output=200))
    for second in range(50):
        decision = planner.plan(replace(more, now_s=end_s + 1 + second))
        assert sum(sizes(decision)) <= 4
    assert decision.decode.wanted > 1
    assert decision.prefill.target < 3  # the available GPUs are divided anew


def test_more_ready_replicas_than_assumed_end_the_restriction() -> None:
    planner = Planner(HASTY)
    end_s = failed(planner, 0.0)
    assert planner.plan(at(end_s + 1, pool(3))).believed_gpus == 4
    decision = planner.plan(at(end_s + 2, pool(4)))  # one started after all
    assert decision.believed_gpus == HASTY.budget_gpus
    assert sizes(decision) == (5, 1)


def test_an_old_restriction_expires() -> None:
    planner = Planner(HASTY)
    end_s = failed(planner, 0.0)
    quiet = replace(at(end_s + 1, pool(3)), traffic=traffic(1.0))
    for second in range(int(HASTY.retry_after_s + HASTY.max_retry_after_s) + 1):
        planner.plan(replace(quiet, now_s=end_s + 1 + second))
    assert planner.state is not None
    assert planner.state.trouble is None


@pytest.mark.parametrize("starting", [(), (0.0,)])
def test_the_minimum_is_never_given_up(starting: tuple[float, ...]) -> None:
    planner = Planner(HASTY)
    nothing = pool(0, starting_since_s=starting)
    for second in range(300):
        decision = planner.plan(snapshot(float(second), LOAD, nothing, pool(1)))
        assert decision.prefill.target >= 1
    assert planner.state is not None
    assert planner.state.trouble is None or starting

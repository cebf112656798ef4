"""Pools that scale to zero without requests, and wake."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.deployment.autoscaling_snapshots import (
    QUIET,
    SETTINGS,
    Planner,
    decode,
    pool,
    prefill,
    sizes,
    snapshot,
    traffic,
)

SLEEPY = replace(SETTINGS, idle_s=100.0)


def test_without_requests_both_pools_go_to_zero_together() -> None:
    planner = Planner(SLEEPY)
    seen = snapshot(load=traffic(1.0), prefills=pool(2), decodes=pool(2))
    planner.plan(seen)
    quiet = replace(seen, now_s=1.0, traffic=QUIET)
    assert sizes(planner.plan_for(98, quiet)) == (2, 2)
    asleep = planner.plan(replace(quiet, now_s=100.0))
    assert sizes(asleep) == (0, 0)
    assert asleep.reason == "prefill: no request for 100 s; decode: no request for 100 s"
    empty = snapshot(101.0, QUIET, pool(0, num_draining=2), pool(0))
    assert sizes(planner.plan_for(1000, empty)) == (0, 0)


def test_a_clock_that_goes_backwards_neither_wakes_pools_nor_keeps_them_awake() -> None:
    planner = Planner(SLEEPY)
    awake = snapshot(10_000.0, traffic(1.0), pool(1), pool(1))
    planner.plan(awake)
    assert sizes(planner.plan_for(99, replace(awake, now_s=500.0, traffic=QUIET))) == (1, 1)
    assert sizes(planner.plan(replace(awake, now_s=600.0, traffic=QUIET))) == (0, 0)
    assert sizes(planner.plan_for(99, snapshot(0.0, QUIET, pool(0), pool(0)))) == (0, 0)


def awake_fields() -> list[dict[str, Any]]:
    return [
        {"traffic": traffic(0.02)},
        {"prefill": prefill(pool(0), queued_tokens=5)},
        {"prefill": prefill(pool(0, oldest_wait_s=0.1))},
        {"decode": decode(pool(0), num_waiting=1)},
        {"decode": decode(pool(0, oldest_wait_s=0.1))},
    ]


@pytest.mark.parametrize("changes", awake_fields())
def test_the_first_request_wakes_both_pools_at_once(changes: dict[str, Any]) -> None:
    planner = Planner(SLEEPY)
    empty = snapshot(0.0, QUIET, pool(0), pool(0))
    assert sizes(planner.plan(empty)) == (0, 0)
    decision = planner.plan(replace(empty, now_s=1.0, **changes))
    assert sizes(decision) == (1, 1)


def test_running_requests_keep_pools_awake() -> None:
    planner = Planner(SLEEPY)
    seen = snapshot(0.0, QUIET, pool(1), pool(1), decode=decode(pool(1), num_running=1))
    assert sizes(planner.plan_for(500, seen)) == (1, 1)


def test_pools_never_sleep_by_default() -> None:
    assert sizes(Planner().plan_for(2000, snapshot(0.0, QUIET, pool(2), pool(2)))) == (1, 1)

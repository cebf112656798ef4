"""Invalid measurements change no size."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import Arrivals, PoolsSnapshot
from tests.unit.deployment.autoscaling_snapshots import QUIET, SETTINGS, Planner, pool, sizes, snapshot, traffic


def broken() -> list[tuple[str, Any]]:
    """Return snapshots that are invalid for the prefill pool, the decode pool, or either."""
    seen = snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(4))
    found: list[tuple[str, Any]] = []
    for bad in (nan, inf, -1.0):
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, tokens_per_s=bad)))]
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, queued_tokens=bad)))]
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, handover_s=bad)))]
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, pool=pool(4, oldest_wait_s=bad))))]
        found += [("decode", replace(seen, decode=replace(seen.decode, step_s=bad)))]
        found += [("decode", replace(seen, decode=replace(seen.decode, sequence_s=bad)))]
        found += [("decode", replace(seen, decode=replace(seen.decode, kv_used_tokens=bad)))]
        found += [("both", replace(seen, traffic=traffic(19.0, requests_per_s=bad)))]
        found += [("both", replace(seen, traffic=traffic(19.0, arrival_cv2=bad)))]
        found += [("both", replace(seen, traffic=traffic(19.0, recent=(Arrivals(bad, 190),))))]
        found += [("both", replace(seen, traffic=traffic(19.0, prompt_tokens=Moments(bad, 1.0))))]
        found += [("prefill", replace(seen, traffic=traffic(19.0, uncached_tokens=Moments(2000.0, bad))))]
        found += [("prefill", replace(seen, traffic=traffic(19.0, remote_tokens=Moments(2000.0, bad))))]
        found += [("decode", replace(seen, traffic=traffic(19.0, output_tokens=Moments(bad, 2.0))))]
    found += [("prefill", replace(seen, prefill=replace(seen.prefill, tokens_per_s=0.0)))]
    found += [("decode", replace(seen, decode=replace(seen.decode, step_s=0.0)))]
    found += [("both", replace(seen, traffic=traffic(19.0, prompt=0)))]
    found += [("both", replace(seen, traffic=traffic(19.0, recent=(Arrivals(0.0, 190),))))]
    found += [("decode", replace(seen, traffic=traffic(19.0, output=0)))]
    return found


@pytest.mark.parametrize(("pools", "seen"), broken())
def test_a_pool_with_invalid_measurements_keeps_its_size(pools: str, seen: PoolsSnapshot) -> None:
    decision = Planner().plan_for(310, seen)
    reasons = {"prefill": decision.prefill, "decode": decision.decode}
    for name in ("prefill", "decode") if pools == "both" else (pools,):
        assert reasons[name].target == 4
        assert reasons[name].reason.startswith("stays 4: ")
    if pools == "prefill":
        assert decision.decode.target == 3
    if pools == "decode":
        assert decision.prefill.target == 5


@pytest.mark.parametrize(
    "seen",
    [
        snapshot(nan),
        snapshot(inf),
        snapshot(6.0, prefills=pool(-1)),
        snapshot(6.0, decodes=pool(2, num_draining=nan)),
        snapshot(6.0, decodes=pool(2, starting_since_s=(nan,))),
    ],
)
def test_without_a_clock_or_counts_all_sizes_stay(seen: PoolsSnapshot) -> None:
    planner = Planner()
    before = planner.plan_for(5, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(3)))
    state = planner.state
    decision = planner.plan(seen)
    assert sizes(decision) == sizes(before) == (5, 3)
    assert planner.state is state
    assert "the clock is" in decision.reason or "replicas are" in decision.reason
    assert sizes(Planner().plan(seen)) == (1, 1)  # there were never any counts


def test_invalid_measurements_neither_wake_pools_nor_put_them_to_sleep() -> None:
    lost = replace(SETTINGS, idle_s=100.0)
    seen = snapshot(load=traffic(nan), prefills=pool(2), decodes=pool(2))
    assert sizes(Planner(lost).plan_for(500, seen)) == (2, 2)
    planner = Planner(lost)
    assert sizes(planner.plan(snapshot(0.0, QUIET, pool(0), pool(0)))) == (0, 0)
    assert sizes(planner.plan(snapshot(1.0, traffic(nan), pool(0), pool(0)))) == (0, 0)


def test_pools_whose_speed_was_never_measured_are_put_to_sleep() -> None:
    """After a few requests, workers do not know the time of their steps."""
    seen = snapshot(load=QUIET, prefills=pool(1), decodes=pool(1))
    unmeasured = replace(seen, prefill=replace(seen.prefill, tokens_per_s=0.0), decode=replace(seen.decode, step_s=0.0))
    assert sizes(Planner(replace(SETTINGS, idle_s=100.0)).plan_for(500, unmeasured)) == (0, 0)

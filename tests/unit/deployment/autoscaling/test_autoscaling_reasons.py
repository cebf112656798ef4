"""The reason of a decision says what holds a pool at a size that its load does not need."""

from dataclasses import replace
from math import nan

from baton.deployment.autoscaling.snapshot import ReplicaLatency
from tests.unit.deployment.autoscaling_snapshots import QUIET, SETTINGS, Planner, decode, pool, snapshot, traffic


def test_replicas_kept_as_a_margin_are_named() -> None:
    seen = snapshot(load=traffic(15.0, window_s=10.0), prefills=pool(5), decodes=pool(3))
    decision = Planner().plan_for(310, seen)
    assert (decision.prefill.target, decision.prefill.need) == (5, 4)
    assert decision.prefill.reason.startswith("stays 5, 4 needed and 1 kept as a margin: ")


def test_a_budget_that_is_too_small_is_named() -> None:
    planner = Planner(replace(SETTINGS, budget_gpus=6))
    reasons = planner.plan_for(1000, snapshot(load=traffic(50.0), prefills=pool(4), decodes=pool(2))).reason
    assert " needed, but there are not enough GPUs for both pools: " in reasons


def test_a_pool_that_may_not_turn_yet_names_its_last_change() -> None:
    planner, now_s, size = Planner(), 0.0, 5
    for rate in (1.0, 19.0):  # it shrinks, and then grows
        before = size
        while size == before:
            assert now_s < 1000
            size = planner.plan(snapshot(now_s, traffic(rate), pool(before), pool(3))).prefill.target
            now_s += 1.0
    for _ in range(350):
        decision = planner.plan(snapshot(now_s, traffic(1.0), pool(size), pool(3)))
        now_s += 1.0
    assert decision.prefill.reason.startswith(f"stays {size}, 1 would be enough for 349 s, but it grew too recently: ")


def test_a_pool_that_has_just_changed_is_held_by_nothing() -> None:
    planner, reasons = Planner(), []
    for second in range(30):  # the load rises, so that more is needed than during the whole delay
        seen = snapshot(second, traffic(3.0 + second), pool(2), pool(3))
        reasons.append(planner.plan(seen).prefill.reason)
    changes = [each for each in reasons if each.startswith("2 -> 3")]
    assert changes
    assert all(each.startswith("2 -> 3: with ") for each in changes)


def test_the_correction_is_reported_whatever_is_decided() -> None:
    late = tuple(ReplicaLatency(1000.0, 100, 2.5) for _ in range(5))
    seen = snapshot(load=traffic(19.0), prefills=pool(5, latencies=late), decodes=pool(3))
    planner = Planner(replace(SETTINGS, idle_s=10.0))
    factor = planner.plan_for(200, seen).prefill.factor
    assert factor > 1.1
    invalid = replace(
        seen, now_s=201.0, decode=decode(pool(3), step_s=-1.0), prefill=replace(seen.prefill, tokens_per_s=nan)
    )
    for each in (invalid, snapshot(nan), snapshot(220.0, QUIET, pool(5), pool(3))):
        decision = planner.plan(each)
        assert abs(decision.prefill.factor - factor) < 0.1
    assert decision.prefill.reason == "no request for 10 s"

"""Decisions of `plan_pools` on hand-made snapshots."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.need import load_chance
from baton.deployment.autoscaling.settings import SLO, PoolLimits, ScalingSettings
from baton.deployment.autoscaling.snapshot import ReplicaLatency
from tests.unit.deployment.autoscaling_snapshots import (
    QUIET,
    SETTINGS,
    Planner,
    decode,
    exponential,
    pool,
    prefill,
    sizes,
    snapshot,
    traffic,
)


def test_each_pool_gets_what_its_load_needs() -> None:
    decision = Planner().plan_for(10, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(2)))
    assert sizes(decision) == (5, 3)
    assert decision.reason.startswith("prefill: stays 5: with 5 the TTFT quantile is 0.")


def test_the_reason_names_the_queue_and_the_longest_wait() -> None:
    planner = Planner()
    decision = planner.plan_for(3, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(9)))
    assert decision.prefill.reason.startswith("stays 4, 5 needed for 3 s: ")
    assert decision.decode.reason.startswith("stays 9, ")
    decision = planner.plan(snapshot(5.0, traffic(19.0), pool(4), pool(9)))
    assert decision.prefill.reason.startswith("4 -> 5: ")


@pytest.mark.parametrize(
    ("tokens_per_s", "kv_tokens", "target"),
    [(100_000.0, 400_000, 1), (100_000.0, 40_000, 1), (5_000.0, 400_000, 1), (5_000.0, 40_000, 2)],
)
def test_prompts_that_wait_for_their_first_token_need_kv(tokens_per_s: float, kv_tokens: int, target: int) -> None:
    """The slower prefill is, the longer decode workers hold blocks for its prompts."""
    prefills = prefill(pool(8), tokens_per_s=tokens_per_s)
    seen = snapshot(load=traffic(5.0), prefill=prefills, decode=decode(pool(1), kv_tokens=kv_tokens))
    assert Planner().plan_for(10, seen).decode.target == target


def test_a_pool_never_shrinks_below_its_running_sequences() -> None:
    seen = snapshot(load=traffic(1.0), decodes=pool(4))
    idle = Planner().plan_for(310, seen)
    assert idle.decode.target == 1
    busy = replace(seen, decode=decode(pool(4), num_running=3 * 41 + 1))
    assert Planner().plan_for(310, busy).decode.target == 4
    waiting = replace(seen, decode=decode(pool(4), num_running=2 * 41, num_waiting=1))
    assert Planner().plan_for(310, waiting).decode.target == 3


def test_waiting_requests_count_like_arrivals() -> None:
    queued = snapshot(load=traffic(15.0), prefills=pool(4), decodes=pool(3))
    assert sizes(Planner().plan_for(10, queued)) == (4, 3)
    tokens = replace(queued, prefill=prefill(pool(4), queued_tokens=800_000))  # 80 s of work
    assert Planner().plan_for(10, tokens).prefill.target == 5
    sequences = replace(queued, decode=decode(pool(3), num_waiting=900))
    assert Planner().plan_for(10, sequences).decode.target > 3


def test_measured_times_correct_the_model() -> None:
    late = tuple(ReplicaLatency(1000.0, 100, 2.5) for _ in range(5))
    seen = snapshot(load=traffic(19.0), prefills=pool(5, latencies=late), decodes=pool(3))
    decision = Planner().plan_for(200, seen)
    assert decision.prefill.factor > 1.1
    assert decision.prefill.target > 5
    waiting = replace(seen, decode=decode(pool(3), num_waiting=1))  # a late first token is not prefill's fault
    assert Planner().plan_for(200, waiting).prefill.factor == 1.0


def test_a_measured_tpot_corrects_only_decode() -> None:
    late = tuple(ReplicaLatency(1000.0, 100, 0.08) for _ in range(3))
    seen = snapshot(load=traffic(19.0), prefills=pool(5), decodes=pool(3, latencies=late))
    decision = Planner().plan_for(200, seen)
    assert decision.decode.factor > 1.1 > decision.prefill.factor
    assert decision.decode.target > 3


def test_a_load_measured_from_few_requests_needs_more_margin_to_shrink() -> None:
    assert load_chance(traffic(100.0), exponential(1.0)) == pytest.approx(2 * (2 / 6000) ** 0.5)
    assert load_chance(traffic(0.01), exponential(1.0)) == 1.0
    assert load_chance(QUIET, Moments()) == 1.0
    sure, unsure = (
        Planner().plan_for(310, snapshot(load=traffic(14.0, window_s=window_s), prefills=pool(5), decodes=pool(3)))
        for window_s in (6000.0, 10.0)
    )
    assert (sure.prefill.target, unsure.prefill.target) == (4, 5)


def test_size_limits_hold_for_any_load() -> None:
    limited = replace(SETTINGS, prefill=PoolLimits(max_replicas=3), decode=PoolLimits(min_replicas=2))
    assert sizes(Planner(limited).plan_for(10, snapshot(load=traffic(50.0))))[0] == 3
    assert sizes(Planner(limited).plan_for(10, snapshot(load=traffic(0.1)))) == (1, 2)


def test_a_lost_state_changes_nothing_at_once() -> None:
    planner = Planner()
    seen = snapshot(load=traffic(1.0), prefills=pool(5), decodes=pool(4))
    assert sizes(planner.plan_for(290, seen)) == (5, 4)
    planner.state = None
    assert sizes(planner.plan_for(290, replace(seen, now_s=291.0))) == (5, 4)


def test_a_gap_between_runs_is_no_evidence() -> None:
    planner = Planner()
    seen = snapshot(load=traffic(1.0), prefills=pool(5), decodes=pool(3))
    planner.plan(seen)
    assert sizes(planner.plan(replace(seen, now_s=10_000.0))) == (5, 3)
    assert sizes(planner.plan_for(300, replace(seen, now_s=10_001.0))) == (1, 1)


def test_a_clock_that_goes_backwards_restarts_all_delays() -> None:
    planner = Planner()
    seen = snapshot(10_000.0, traffic(1.0), pool(5), pool(3))
    planner.plan_for(299, seen)
    assert sizes(planner.plan_for(299, replace(seen, now_s=0.0))) == (5, 3)
    assert sizes(planner.plan(replace(seen, now_s=300.0))) == (1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget_gpus": 1},
        {"margin": -0.1},
        {"upscale_delay_s": nan},
        {"idle_s": -1.0},
        {"retry_after_s": 0.0},
        {"slo": SLO(ttft_s=0.0)},
        {"slo": SLO(quantile=0.999)},
        {"max_kv_share": 0.0},
        {"max_correction": 0.5},
        {"prefill": PoolLimits(min_replicas=0)},
        {"decode": PoolLimits(min_replicas=3, max_replicas=2)},
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|need|less than|supports only"):
        replace(ScalingSettings(budget_gpus=8), **changes).check()

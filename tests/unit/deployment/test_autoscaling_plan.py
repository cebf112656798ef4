"""Decisions of `plan_pools` on hand-made snapshots."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.autoscaling.moments import Moments
from deployment.autoscaling.need import load_chance
from deployment.autoscaling.plan import plan_pools
from deployment.autoscaling.settings import SLO, PoolLimits, ScalingSettings
from deployment.autoscaling.snapshot import (
    DecodeSnapshot,
    PoolSnapshot,
    PoolsSnapshot,
    PrefillSnapshot,
    ReplicaLatency,
    Traffic,
)
from tests.unit.deployment.autoscaling_snapshots import (
    SETTINGS,
    Looker,
    decode,
    exponential,
    pool,
    prefill,
    sizes,
    snapshot,
    traffic,
)

QUIET = traffic(0.0, prompt=0, output=0)
SLEEPY = replace(SETTINGS, idle_s=100.0)


def test_each_pool_gets_what_its_load_needs() -> None:
    decision = Looker().look_for(10, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(2)))
    assert sizes(decision) == (5, 3)
    assert decision.reason.startswith("prefill: stays 5: with 5 the quantile of TTFT is 0.")


def test_the_reason_names_what_waits_and_for_how_long() -> None:
    looker = Looker()
    decision = looker.look_for(3, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(9)))
    assert decision.prefill.reason.startswith("stays 4, 5 needed for 3 s: ")
    assert decision.decode.reason.startswith("stays 9, ")
    decision = looker.look(snapshot(5.0, traffic(19.0), pool(4), pool(9)))
    assert decision.prefill.reason.startswith("4 -> 5: ")


@pytest.mark.parametrize(
    ("tokens_per_s", "kv_tokens", "target"),
    [(100_000.0, 400_000, 1), (100_000.0, 40_000, 1), (5_000.0, 400_000, 1), (5_000.0, 40_000, 2)],
)
def test_prompts_that_wait_for_their_first_token_need_kv(tokens_per_s: float, kv_tokens: int, target: int) -> None:
    """The slower prefill is, the longer decode workers hold blocks for what it computes."""
    prefills = prefill(pool(8), tokens_per_s=tokens_per_s)
    seen = snapshot(load=traffic(5.0), prefill=prefills, decode=decode(pool(1), kv_tokens=kv_tokens))
    assert Looker().look_for(10, seen).decode.target == target


def test_sequences_that_run_are_not_left_without_a_place() -> None:
    seen = snapshot(load=traffic(1.0), decodes=pool(4))
    idle = Looker().look_for(310, seen)
    assert idle.decode.target == 1
    busy = replace(seen, decode=decode(pool(4), num_running=3 * 41 + 1))
    assert Looker().look_for(310, busy).decode.target == 4
    waiting = replace(seen, decode=decode(pool(4), num_running=2 * 41, num_waiting=1))
    assert Looker().look_for(310, waiting).decode.target == 3


def test_what_waits_counts_as_well_as_what_comes() -> None:
    queued = snapshot(load=traffic(15.0), prefills=pool(4), decodes=pool(3))
    assert sizes(Looker().look_for(10, queued)) == (4, 3)
    tokens = replace(queued, prefill=prefill(pool(4), queued_tokens=800_000))  # 80 s of work
    assert Looker().look_for(10, tokens).prefill.target == 5
    sequences = replace(queued, decode=decode(pool(3), num_waiting=900))
    assert Looker().look_for(10, sequences).decode.target > 3


def test_measured_times_correct_the_model() -> None:
    late = tuple(ReplicaLatency(1000.0, 100, 2.5) for _ in range(5))
    seen = snapshot(load=traffic(19.0), prefills=pool(5, latencies=late), decodes=pool(3))
    decision = Looker().look_for(200, seen)
    assert decision.prefill.factor > 1.1
    assert decision.prefill.target > 5
    waiting = replace(seen, decode=decode(pool(3), num_waiting=1))  # a late first token is not prefill's fault
    assert Looker().look_for(200, waiting).prefill.factor == 1.0


def test_a_measured_tpot_corrects_decode_alone() -> None:
    late = tuple(ReplicaLatency(1000.0, 100, 0.08) for _ in range(3))
    seen = snapshot(load=traffic(19.0), prefills=pool(5), decodes=pool(3, latencies=late))
    decision = Looker().look_for(200, seen)
    assert decision.decode.factor > 1.1 > decision.prefill.factor
    assert decision.decode.target > 3


def test_a_load_known_from_few_requests_may_be_chance() -> None:
    assert load_chance(traffic(100.0), exponential(1.0)) == pytest.approx(2 * (2 / 6000) ** 0.5)
    assert load_chance(traffic(0.01), exponential(1.0)) == 1.0
    assert load_chance(QUIET, Moments()) == 1.0
    sure, unsure = (
        Looker().look_for(310, snapshot(load=traffic(14.0, window_s=window_s), prefills=pool(5), decodes=pool(3)))
        for window_s in (6000.0, 10.0)
    )
    assert (sure.prefill.target, unsure.prefill.target) == (4, 5)


def test_limits_hold_whatever_the_load() -> None:
    limited = replace(SETTINGS, prefill=PoolLimits(max_replicas=3), decode=PoolLimits(min_replicas=2))
    assert sizes(Looker(limited).look_for(10, snapshot(load=traffic(50.0))))[0] == 3
    assert sizes(Looker(limited).look_for(10, snapshot(load=traffic(0.1)))) == (1, 2)


def test_a_lost_state_changes_nothing_at_once() -> None:
    looker = Looker()
    seen = snapshot(load=traffic(1.0), prefills=pool(5), decodes=pool(4))
    assert sizes(looker.look_for(290, seen)) == (5, 4)
    looker.state = None
    assert sizes(looker.look_for(290, replace(seen, now_s=291.0))) == (5, 4)


def test_a_gap_between_looks_is_no_evidence() -> None:
    looker = Looker()
    seen = snapshot(load=traffic(1.0), prefills=pool(5), decodes=pool(3))
    looker.look(seen)
    assert sizes(looker.look(replace(seen, now_s=10_000.0))) == (5, 3)
    assert sizes(looker.look_for(300, replace(seen, now_s=10_001.0))) == (1, 1)


def test_a_clock_that_goes_back_begins_anew() -> None:
    looker = Looker()
    seen = snapshot(10_000.0, traffic(1.0), pool(5), pool(3))
    looker.look_for(299, seen)
    assert sizes(looker.look_for(299, replace(seen, now_s=0.0))) == (5, 3)
    assert sizes(looker.look(replace(seen, now_s=300.0))) == (1, 1)


def test_without_requests_both_pools_go_to_zero_together() -> None:
    looker = Looker(SLEEPY)
    seen = snapshot(load=traffic(1.0), prefills=pool(2), decodes=pool(2))
    looker.look(seen)
    quiet = replace(seen, now_s=1.0, traffic=QUIET)
    assert sizes(looker.look_for(98, quiet)) == (2, 2)
    asleep = looker.look(replace(quiet, now_s=100.0))
    assert sizes(asleep) == (0, 0)
    assert asleep.reason == "prefill: no request for 100 s; decode: no request for 100 s"
    empty = snapshot(101.0, QUIET, pool(0, num_draining=2), pool(0))
    assert sizes(looker.look_for(1000, empty)) == (0, 0)


def test_a_clock_that_goes_back_neither_wakes_pools_nor_keeps_them_awake() -> None:
    looker = Looker(SLEEPY)
    awake = snapshot(10_000.0, traffic(1.0), pool(1), pool(1))
    looker.look(awake)
    assert sizes(looker.look_for(99, replace(awake, now_s=500.0, traffic=QUIET))) == (1, 1)
    assert sizes(looker.look(replace(awake, now_s=600.0, traffic=QUIET))) == (0, 0)
    assert sizes(looker.look_for(99, snapshot(0.0, QUIET, pool(0), pool(0)))) == (0, 0)


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
    looker = Looker(SLEEPY)
    empty = snapshot(0.0, QUIET, pool(0), pool(0))
    assert sizes(looker.look(empty)) == (0, 0)
    decision = looker.look(replace(empty, now_s=1.0, **changes))
    assert sizes(decision) == (1, 1)


def test_running_requests_keep_pools_awake() -> None:
    looker = Looker(SLEEPY)
    seen = snapshot(0.0, QUIET, pool(1), pool(1), decode=decode(pool(1), num_running=1))
    assert sizes(looker.look_for(500, seen)) == (1, 1)


def test_pools_never_sleep_unless_told() -> None:
    assert sizes(Looker().look_for(2000, snapshot(0.0, QUIET, pool(2), pool(2)))) == (1, 1)


def broken() -> list[tuple[str, Any]]:
    """Snapshots that make no sense of the prefill pool, the decode pool, or either."""
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
        found += [("both", replace(seen, traffic=traffic(19.0, prompt_tokens=Moments(bad, 1.0))))]
        found += [("prefill", replace(seen, traffic=traffic(19.0, uncached_tokens=Moments(2000.0, bad))))]
        found += [("decode", replace(seen, traffic=traffic(19.0, output_tokens=Moments(bad, 2.0))))]
    found += [("prefill", replace(seen, prefill=replace(seen.prefill, tokens_per_s=0.0)))]
    found += [("decode", replace(seen, decode=replace(seen.decode, step_s=0.0)))]
    found += [("both", replace(seen, traffic=traffic(19.0, prompt=0)))]
    found += [("decode", replace(seen, traffic=traffic(19.0, output=0)))]
    return found


@pytest.mark.parametrize(("pools", "seen"), broken())
def test_of_what_makes_no_sense_nothing_is_concluded(pools: str, seen: PoolsSnapshot) -> None:
    decision = Looker().look_for(310, seen)
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
def test_without_a_clock_or_counts_everything_stays(seen: PoolsSnapshot) -> None:
    looker = Looker()
    before = looker.look_for(5, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(3)))
    state = looker.state
    decision = looker.look(seen)
    assert sizes(decision) == sizes(before) == (5, 3)
    assert looker.state is state
    assert "the clock says" in decision.reason or "replicas are" in decision.reason
    assert sizes(Looker().look(seen)) == (1, 1)  # nothing was ever known


def test_nonsense_neither_wakes_pools_nor_puts_them_to_sleep() -> None:
    lost = replace(SETTINGS, idle_s=100.0)
    seen = snapshot(load=traffic(nan), prefills=pool(2), decodes=pool(2))
    assert sizes(Looker(lost).look_for(500, seen)) == (2, 2)
    looker = Looker(lost)
    assert sizes(looker.look(snapshot(0.0, QUIET, pool(0), pool(0)))) == (0, 0)
    assert sizes(looker.look(snapshot(1.0, traffic(nan), pool(0), pool(0)))) == (0, 0)


ANY = st.one_of(st.floats(), st.floats(0, 1e6), st.sampled_from([0.0, 1.0, nan, inf, 1e-300, 1e300]))
COUNT = st.integers(0, 6)


@st.composite
def any_pool(draw: st.DrawFn) -> PoolSnapshot:
    return PoolSnapshot(
        num_ready=draw(COUNT),
        starting_since_s=tuple(draw(st.lists(st.floats(-1e4, 1e4), max_size=3))),
        num_draining=draw(COUNT),
        start_s=draw(ANY),
        drain_s=draw(ANY),
        oldest_wait_s=draw(ANY),
        latencies=tuple(draw(st.lists(st.builds(ReplicaLatency, ANY, st.integers(-5, 1000), ANY), max_size=2))),
    )


MOMENTS = st.builds(Moments, ANY, ANY)
SNAPSHOTS = st.builds(
    PoolsSnapshot,
    now_s=st.floats(0, 1e5),
    traffic=st.builds(
        Traffic,
        window_s=ANY,
        requests_per_s=ANY,
        arrival_cv2=ANY,
        prompt_tokens=MOMENTS,
        uncached_tokens=MOMENTS,
        output_tokens=MOMENTS,
    ),
    prefill=st.builds(
        PrefillSnapshot,
        pool=any_pool(),
        tokens_per_s=ANY,
        step_s=ANY,
        max_step_tokens=st.integers(-1, 10_000),
        handover_s=ANY,
        queued_tokens=ANY,
    ),
    decode=st.builds(
        DecodeSnapshot,
        pool=any_pool(),
        step_s=ANY,
        sequence_s=ANY,
        max_num_seqs=st.integers(-1, 1000),
        kv_tokens=st.integers(-1, 10**7),
        kv_used_tokens=st.integers(-1, 10**7),
        num_running=st.integers(-1, 1000),
        num_waiting=st.integers(-1, 1000),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SNAPSHOTS, min_size=1, max_size=6), st.sampled_from([None, 0.0, 50.0]), st.sampled_from([None, 1.0]))
def test_anything_that_is_measured_gives_sizes_within_the_limits(
    seen: list[PoolsSnapshot], idle_s: float | None, flip_s: float | None
) -> None:
    chosen = replace(SETTINGS, idle_s=idle_s, flip_s=flip_s, upscale_delay_s=0.0, downscale_delay_s=0.0)
    state = None
    for each in seen:
        decision, state = plan_pools(each, state, chosen)
        for part in (decision.prefill, decision.decode):
            assert 0 <= part.target <= chosen.budget_gpus
            assert part.reason
            assert 0.5 <= part.factor <= 2.0


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
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|need|under|tell no more"):
        replace(ScalingSettings(budget_gpus=8), **changes).check()

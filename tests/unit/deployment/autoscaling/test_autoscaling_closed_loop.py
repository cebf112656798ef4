"""Pools that are driven by `plan_pools`, in virtual time: see `autoscaling_rig`."""

from dataclasses import replace

import pytest

from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from tests.unit.deployment.autoscaling_load import Load, Machine
from tests.unit.deployment.autoscaling_rig import Rig

SETTINGS = ScalingSettings(budget_gpus=16)


def targets(rig: Rig, from_s: float, until_s: float) -> tuple[set[int], set[int]]:
    """All targets of either pool in a time."""
    found = [look.sizes for look in rig.looks if from_s <= look.now_s < until_s]
    return {prefill for prefill, _ in found}, {decode for _, decode in found}


def test_long_prompts_grow_prefill_alone() -> None:
    load = Load(lambda _: 4.0, prompt_tokens=lambda now_s: 1000.0 if now_s < 300 else 4000.0)
    rig = Rig(load, SETTINGS, sizes=(2, 1))
    rig.run(1200)
    prefill, decode = targets(rig, 300, 1200)
    assert decode == {1}
    assert max(prefill) >= 3
    assert rig.ttft(0, 300) < 1.0
    assert rig.ttft(500, 1200) < 1.1 * 1.4  # a prompt of 4,000 alone takes 1.2 s at this quantile


def test_long_answers_grow_decode_alone() -> None:
    load = Load(lambda _: 4.0, output_tokens=lambda now_s: 100.0 if now_s < 300 else 1000.0)
    rig = Rig(load, SETTINGS, sizes=(2, 1))
    rig.run(1500)
    prefill, decode = targets(rig, 300, 1500)
    assert prefill == {2}
    assert 5 <= max(decode) <= 11
    assert rig.snapshot().decode.num_waiting == 0
    tpots = [latency.quantile_s for latency in rig.snapshot().decode.pool.latencies if latency.num_samples > 20]
    assert tpots
    assert max(tpots) < SETTINGS.slo.tpot_s


def test_quiet_shrinks_both() -> None:
    rig = Rig(Load(lambda now_s: 12.0 if now_s < 600 else 0.1), SETTINGS, sizes=(5, 3))
    rig.run(600)
    assert rig.looks[-1].sizes >= (4, 2)
    rig.run(1800)
    assert rig.looks[-1].sizes == (1, 1)
    assert rig.ttft(600, 1800) < 1.0


def test_a_spike_is_answered_and_its_replicas_go_again() -> None:
    rig = Rig(Load(lambda now_s: 20.0 if 300 <= now_s < 600 else 5.0), SETTINGS, sizes=(3, 2))
    rig.run(2400)
    prefill, decode = targets(rig, 300, 600)
    assert 5 <= max(prefill) <= 10
    assert 3 <= max(decode) <= 6
    assert rig.ttft(0, 300) < 1.0
    assert rig.ttft(450, 600) < 1.0  # the replicas took a minute to be asked for and to start, and the queue another
    assert rig.looks[-1].sizes <= (3, 2)
    assert rig.ttft(700, 2400) < 1.0


def test_an_idle_service_goes_to_zero_and_comes_back() -> None:
    settings = replace(SETTINGS, idle_s=120.0)
    rig = Rig(Load(lambda now_s: 2.0 if now_s < 300 or now_s >= 1200 else 0.0), settings, sizes=(1, 1))
    rig.run(1200)
    assert rig.looks[-1].sizes == (0, 0)
    assert rig.looks[-1].gpus == 0
    for look in rig.looks:
        assert (look.sizes[0] == 0) == (look.sizes[1] == 0)
    rig.run(1205)
    assert min(rig.looks[-1].sizes) >= 1
    rig.run(2000)
    assert rig.ttft(1300, 2000) < 1.0


def test_a_node_that_never_comes_is_given_up_and_later_tried_again() -> None:
    settings = replace(SETTINGS, start_timeout_s=300.0)
    rig = Rig(Load(lambda _: 16.0), settings, sizes=(2, 2), real_gpus=lambda now_s: 6 if now_s < 1500 else 16)
    rig.run(1500)
    times = [look.now_s for look in rig.looks if look.gpus > 6]
    assert min(times) < 20
    assert any(look.gpus <= 6 for look in rig.looks if look.now_s > 310)
    believed = {look.decision.believed_gpus for look in rig.looks}
    assert 6 in believed
    rig.run(3000)
    assert sum(rig.looks[-1].sizes) > 6
    assert rig.ttft(2600, 3000) < 1.0


def test_a_gpu_goes_from_one_pool_to_the_other_within_the_budget() -> None:
    settings = replace(SETTINGS, budget_gpus=8)
    prompts = Load(
        lambda _: 8.0,
        prompt_tokens=lambda now_s: 2500.0 if now_s < 600 else 500.0,
        output_tokens=lambda now_s: 50.0 if now_s < 600 else 500.0,
    )
    rig = Rig(prompts, settings, sizes=(6, 2))
    rig.run(600)
    before = rig.looks[-1].sizes
    rig.run(1500)
    after = rig.looks[-1].sizes
    assert before[0] >= 4
    assert after[0] < before[0]
    assert after[1] >= 6
    assert max(look.gpus for look in rig.looks) <= 8


def test_over_the_budget_the_pools_share_it_and_stay() -> None:
    settings = replace(SETTINGS, budget_gpus=8)
    rig = Rig(Load(lambda _: 14.0, output_tokens=lambda _: 400.0), settings, sizes=(4, 4))
    rig.run(1200)
    prefill, decode = targets(rig, 600, 1200)
    assert len(prefill) == len(decode) == 1
    assert sum(rig.looks[-1].sizes) == 8
    assert rig.looks[-1].decision.prefill.need + rig.looks[-1].decision.decode.need > 8


def test_replicas_of_several_gpus_keep_the_budget_too() -> None:
    settings = ScalingSettings(
        budget_gpus=20, prefill=PoolLimits(gpus_per_replica=2), decode=PoolLimits(gpus_per_replica=4)
    )
    rig = Rig(Load(lambda now_s: 10.0 if now_s % 600 < 300 else 1.0, output_tokens=lambda _: 300.0), settings)
    rig.run(1800)
    assert max(look.gpus for look in rig.looks) <= 20


@pytest.mark.parametrize("reported_speed", [1.5, 0.8])
def test_workers_that_are_not_as_fast_as_they_say_are_found_out(reported_speed: float) -> None:
    rig = Rig(Load(lambda _: 10.0), SETTINGS, sizes=(4, 2), machine=Machine(reported_speed=reported_speed))
    rig.run(2400)
    factors = [look.decision.prefill.factor for look in rig.looks if look.now_s > 1800]
    assert sum(factors) / len(factors) == pytest.approx(reported_speed, rel=0.2)
    assert rig.ttft(1200, 2400) < 1.0


def test_a_cold_start_does_not_make_the_pool_look_slow() -> None:
    cold = Machine(cold_s=20.0)
    rig = Rig(Load(lambda now_s: 4.0 if now_s < 300 else 12.0), SETTINGS, sizes=(2, 1), machine=cold)
    rig.run(1200)
    assert max(look.decision.prefill.factor for look in rig.looks) < 1.4
    assert rig.looks[-1].sizes[0] <= 6

"""Pools driven by `plan_pools` in virtual time; see `autoscaling_rig`."""

from dataclasses import replace

import pytest

from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from tests.unit.deployment.autoscaling_load import Load, Machine
from tests.unit.deployment.autoscaling_rig import Rig

SETTINGS = ScalingSettings(budget_gpus=16)


def targets(rig: Rig, from_s: float, until_s: float) -> tuple[set[int], set[int]]:
    """Return all targets of each pool in a period."""
    found = [planned.sizes for planned in rig.decisions if from_s <= planned.now_s < until_s]
    return {prefill for prefill, _ in found}, {decode for _, decode in found}


@pytest.mark.slow
def test_long_prompts_grow_only_prefill() -> None:
    load = Load(lambda _: 4.0, prompt_tokens=lambda now_s: 1000.0 if now_s < 300 else 4000.0)
    rig = Rig(load, SETTINGS, sizes=(2, 1))
    rig.run(1200)
    prefill, decode = targets(rig, 300, 1200)
    assert decode == {1}
    assert max(prefill) >= 3
    assert rig.ttft(0, 300) < 1.0
    assert rig.ttft(500, 1200) < 1.1 * 1.4  # computing a prompt of 4,000 tokens takes 1.2 s at this quantile


@pytest.mark.slow
def test_long_outputs_grow_only_decode() -> None:
    load = Load(lambda _: 4.0, output_tokens=lambda now_s: 100.0 if now_s < 300 else 1000.0)
    rig = Rig(load, SETTINGS, sizes=(2, 1))
    rig.run(1500)
    prefill, decode = targets(rig, 300, 1500)
    assert prefill == {2}
    assert 5 <= max(decode) <= 12
    assert rig.snapshot().decode.num_waiting == 0
    tpots = [latency.quantile_s for latency in rig.snapshot().decode.pool.latencies if latency.num_samples > 20]
    assert tpots
    assert max(tpots) < SETTINGS.slo.tpot_s


@pytest.mark.slow
def test_low_load_shrinks_both_pools() -> None:
    rig = Rig(Load(lambda now_s: 12.0 if now_s < 600 else 0.1), SETTINGS, sizes=(5, 3))
    rig.run(600)
    assert rig.decisions[-1].sizes >= (4, 2)
    rig.run(1800)
    assert rig.decisions[-1].sizes == (1, 1)
    assert rig.ttft(600, 1800) < 1.0


@pytest.mark.slow
def test_a_spike_adds_replicas_and_removes_them_afterwards() -> None:
    rig = Rig(Load(lambda now_s: 20.0 if 300 <= now_s < 600 else 5.0), SETTINGS, sizes=(3, 2))
    rig.run(2400)
    prefill, decode = targets(rig, 300, 600)
    assert 5 <= max(prefill) <= 10
    assert 3 <= max(decode) <= 6
    assert rig.ttft(0, 300) < 1.0
    assert (
        rig.ttft(450, 600) < 1.0
    )  # requesting and starting the replicas took a minute, and clearing the queue another
    assert rig.decisions[-1].sizes <= (3, 2)
    assert rig.ttft(700, 2400) < 1.0


def test_an_idle_service_scales_to_zero_and_back() -> None:
    settings = replace(SETTINGS, idle_s=120.0)
    rig = Rig(Load(lambda now_s: 2.0 if now_s < 300 or now_s >= 1200 else 0.0), settings, sizes=(1, 1))
    rig.run(1200)
    assert rig.decisions[-1].sizes == (0, 0)
    assert rig.decisions[-1].gpus == 0
    for planned in rig.decisions:
        assert (planned.sizes[0] == 0) == (planned.sizes[1] == 0)
    rig.run(1205)
    assert min(rig.decisions[-1].sizes) >= 1
    rig.run(2000)
    assert rig.ttft(1300, 2000) < 1.0


@pytest.mark.slow
def test_a_replica_that_never_starts_is_given_up_and_retried_later() -> None:
    settings = replace(SETTINGS, start_timeout_s=300.0)
    rig = Rig(Load(lambda _: 16.0), settings, sizes=(2, 2), real_gpus=lambda now_s: 6 if now_s < 1500 else 16)
    rig.run(1500)
    times = [planned.now_s for planned in rig.decisions if planned.gpus > 6]
    assert min(times) < 20
    assert any(planned.gpus <= 6 for planned in rig.decisions if planned.now_s > 310)
    believed = {planned.decision.believed_gpus for planned in rig.decisions}
    assert 6 in believed
    rig.run(3000)
    assert sum(rig.decisions[-1].sizes) > 6
    assert rig.ttft(2600, 3000) < 1.0


def test_a_gpu_moves_between_pools_within_the_budget() -> None:
    settings = replace(SETTINGS, budget_gpus=8)
    prompts = Load(
        lambda _: 8.0,
        prompt_tokens=lambda now_s: 2500.0 if now_s < 600 else 500.0,
        output_tokens=lambda now_s: 50.0 if now_s < 600 else 500.0,
    )
    rig = Rig(prompts, settings, sizes=(6, 2))
    rig.run(600)
    before = rig.decisions[-1].sizes
    rig.run(1500)
    after = rig.decisions[-1].sizes
    assert before[0] >= 4
    assert after[0] < before[0]
    assert after[1] >= 6
    assert max(planned.gpus for planned in rig.decisions) <= 8


@pytest.mark.slow
def test_needs_over_the_budget_give_a_stable_split() -> None:
    settings = replace(SETTINGS, budget_gpus=8)
    rig = Rig(Load(lambda _: 14.0, output_tokens=lambda _: 400.0), settings, sizes=(4, 4))
    rig.run(1200)
    prefill, decode = targets(rig, 600, 1200)
    assert len(prefill) == len(decode) == 1
    assert sum(rig.decisions[-1].sizes) == 8
    assert rig.decisions[-1].decision.prefill.need + rig.decisions[-1].decision.decode.need > 8


@pytest.mark.slow
def test_replicas_of_several_gpus_stay_within_the_budget() -> None:
    settings = ScalingSettings(
        budget_gpus=20, prefill=PoolLimits(gpus_per_replica=2), decode=PoolLimits(gpus_per_replica=4)
    )
    rig = Rig(Load(lambda now_s: 10.0 if now_s % 600 < 300 else 1.0, output_tokens=lambda _: 300.0), settings)
    rig.run(1800)
    assert max(planned.gpus for planned in rig.decisions) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("reported_speed", [1.5, 0.8])
def test_workers_slower_than_reported_are_corrected_for(reported_speed: float) -> None:
    rig = Rig(Load(lambda _: 10.0), SETTINGS, sizes=(4, 2), machine=Machine(reported_speed=reported_speed))
    rig.run(2400)
    factors = [planned.decision.prefill.factor for planned in rig.decisions if planned.now_s > 1800]
    assert sum(factors) / len(factors) == pytest.approx(reported_speed, rel=0.2)
    assert rig.ttft(1200, 2400) < 1.0


@pytest.mark.slow
def test_a_cold_start_does_not_make_the_pool_look_slow() -> None:
    cold = Machine(cold_s=20.0)
    rig = Rig(Load(lambda now_s: 4.0 if now_s < 300 else 12.0), SETTINGS, sizes=(2, 1), machine=cold)
    rig.run(1200)
    assert max(planned.decision.prefill.factor for planned in rig.decisions) < 1.4
    assert rig.decisions[-1].sizes[0] <= 6

"""Correction of the models by measured latencies."""

from dataclasses import replace
from math import inf, nan

import pytest

from baton.deployment.autoscaling.correction import Correction, Measured, warm_quantile
from baton.deployment.autoscaling.snapshot import PoolSnapshot, ReplicaLatency
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, decode, pool, snapshot, traffic

WINDOW_S = 60.0


def measured(*quantiles_s: float, ready_for_s: float = 1000.0) -> PoolSnapshot:
    return pool(len(quantiles_s), latencies=tuple(ReplicaLatency(ready_for_s, 100, each) for each in quantiles_s))


def corrected(seconds: int, seen: PoolSnapshot, predicted_s: float | None, start: float = 1.0) -> float:
    state = Correction(factor=start, num_ready=seen.num_ready, steady_since_s=-WINDOW_S)
    for second in range(1, seconds + 1):
        state = state.after(seen, predicted_s, 1.0, float(second), WINDOW_S, SETTINGS)
    return state.factor


def test_an_optimistic_model_is_made_slower() -> None:
    assert corrected(int(SETTINGS.correction_s), measured(0.6, 0.6), 0.4) == pytest.approx(1.5, rel=0.01)


def test_corrections_towards_a_faster_pool_are_slower() -> None:
    slower, faster = corrected(100, measured(0.6), 0.4), corrected(100, measured(0.4), 0.6)
    assert slower - 1 > 2 * (1 - faster) > 0


def test_the_correction_factor_is_bounded() -> None:
    assert corrected(100_000, measured(100.0), 0.1) == SETTINGS.max_correction
    assert corrected(100_000, measured(0.001), 0.1) == 1 / SETTINGS.max_correction


def test_cold_replicas_do_not_count() -> None:
    assert corrected(1000, measured(5.0, ready_for_s=SETTINGS.warmup_s - 1), 0.5) == 1.0
    warm, cold = ReplicaLatency(100.0, 50, 0.5), ReplicaLatency(1.0, 500, 5.0)
    assert warm_quantile((warm, cold), SETTINGS.warmup_s) == Measured(0.5, 50)


def test_the_median_replica_counts_and_not_a_straggler() -> None:
    samples = [ReplicaLatency(100.0, 50, quantile_s) for quantile_s in (0.4, 30.0, 0.5)]
    assert warm_quantile(samples, 30.0) == Measured(0.5, 150)
    samples.append(ReplicaLatency(100.0, 500, 0.6))
    assert warm_quantile(samples, 30.0) == Measured(0.6, 650)


def test_too_few_or_invalid_samples_correct_nothing() -> None:
    assert warm_quantile((ReplicaLatency(100.0, 19, 0.5),), 30.0) is None
    assert warm_quantile((ReplicaLatency(100.0, 50, nan), ReplicaLatency(100.0, 50, inf)), 30.0) is None
    assert corrected(100, pool(1), 0.5, start=1.3) == 1.3
    assert corrected(100, measured(5.0), None, start=1.3) == 1.3


def test_a_small_sample_has_a_small_weight() -> None:
    few, many = (corrected(60, pool(1, latencies=(ReplicaLatency(100.0, count, 0.6),)), 0.4) for count in (20, 200))
    assert few == pytest.approx(1.5 ** (60 / 5 / SETTINGS.correction_s), rel=0.01)  # one of five beyond the quantile
    assert many == pytest.approx(1.5 ** (60 / SETTINGS.correction_s), rel=0.01)


def test_a_recently_resized_pool_corrects_nothing() -> None:
    state = Correction(num_ready=1, steady_since_s=-WINDOW_S)
    for second in range(int(WINDOW_S)):
        state = state.after(measured(5.0, 5.0), 0.5, 1.0, float(second), WINDOW_S, SETTINGS)
    assert state.factor == 1.0
    assert state.after(measured(5.0, 5.0), 0.5, 1.0, WINDOW_S, WINDOW_S, SETTINGS).factor > 1.0


def test_an_overloaded_pool_corrects_only_towards_faster() -> None:
    assert corrected(100, measured(30.0), inf) == 1.0
    assert corrected(100, measured(0.5), inf, start=2.0) < 2.0


def test_a_long_gap_does_not_count_as_evidence() -> None:
    state = Correction(num_ready=1, steady_since_s=-WINDOW_S)
    paused = state.after(measured(0.6), 0.4, 1.0, 10_000.0, WINDOW_S, SETTINGS)
    assert paused.factor < 1.1
    back = replace(paused, updated_s=20_000.0, steady_since_s=0.0)
    assert back.after(measured(0.6), 0.4, 1.0, 15_000.0, WINDOW_S, SETTINGS).factor == paused.factor


def test_full_batches_of_queued_sequences_correct_nothing() -> None:
    """Earlier arrivals decode in full batches: their steps are long, however few requests arrive now."""
    slow = pool(latencies=(ReplicaLatency(1000.0, 100, 0.045),))
    factors = []
    for num_waiting in (0, 5):
        planner = Planner()
        seen = snapshot(load=traffic(1.0), decode=decode(slow, num_running=36, num_waiting=num_waiting))
        planner.plan_for(200, seen)
        assert planner.state is not None
        factors.append(planner.state.corrections.decode.factor)
    assert factors[0] > 1.5
    assert factors[1] == 1.0

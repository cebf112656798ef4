"""Correction of the models by measured latencies."""

from dataclasses import replace
from math import exp, inf, nan

import pytest

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.correction import (
    MOST_FACTOR,
    MOST_JUMP,
    Correction,
    Measured,
    factor_for,
    warm_quantile,
)
from baton.deployment.autoscaling.snapshot import PoolSnapshot, ReplicaLatency
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, decode, pool, snapshot, traffic

WINDOW_S = 60.0


def measured(*quantiles_s: float, ready_for_s: float = 1000.0) -> PoolSnapshot:
    return pool(len(quantiles_s), latencies=tuple(ReplicaLatency(ready_for_s, 100, each) for each in quantiles_s))


def after(
    state: Correction,
    seen: PoolSnapshot,
    predicted_s: float,
    now_s: float,
    *,
    num_decode: int = 1,
    is_enough: bool = True,
) -> Correction:
    """Return the next correction. `predicted_s`: with a factor of 1, in proportion to which it is longer."""
    return state.after(
        seen.latencies,
        ByPool(seen.num_ready, num_decode),
        lambda factor: factor * predicted_s,
        1.0,
        is_enough,
        now_s,
        WINDOW_S,
        SETTINGS,
    )


def steady(seen: PoolSnapshot, factor: float = 1.0) -> Correction:
    """Return a correction of pools that have had these sizes for a window."""
    return Correction(factor, ByPool(seen.num_ready, 1), steady_since_s=-WINDOW_S)


def corrected(seconds: int, seen: PoolSnapshot, predicted_s: float, start: float = 1.0) -> float:
    state = steady(seen, start)
    for second in range(1, seconds + 1):
        state = after(state, seen, predicted_s, float(second))
    return state.factor


def test_an_optimistic_model_is_made_slower() -> None:
    factor = corrected(int(SETTINGS.correction_s), measured(0.6, 0.6), 0.4)
    assert factor == pytest.approx(1.5 ** (1 - exp(-1)), rel=0.01)
    assert corrected(20 * int(SETTINGS.correction_s), measured(0.6, 0.6), 0.4) == pytest.approx(1.5, rel=0.01)


def test_corrections_towards_a_faster_pool_are_slower() -> None:
    slower, faster = corrected(100, measured(0.6), 0.4), corrected(100, measured(0.4), 0.6)
    assert slower - 1 > 2 * (1 - faster) > 0


def test_an_objective_that_is_broken_for_ten_seconds_corrects_at_once_up_to_twofold() -> None:
    assert corrected(10, measured(1.5), 1.0) < 1.1
    assert corrected(11, measured(1.5), 1.0) == pytest.approx(1.5, rel=0.01)
    for seconds in (11, 1000):  # slow corrections come first
        assert MOST_JUMP <= corrected(seconds, measured(5.0), 1.0) < 1.1 * MOST_JUMP


def grown(state: Correction, seen: PoolSnapshot, from_s: int) -> Correction:
    """Return the correction after a pool has grown, a window and a breach."""
    for second in range(from_s, from_s + 100):
        state = after(state, seen, 1.0, float(second))
    return state


@pytest.mark.parametrize(("latency_s", "factor"), [(4.9, 2.0), (3.0, 3.0), (0.9, 2.0)])
def test_a_factor_rises_further_only_if_a_larger_pool_has_helped(latency_s: float, factor: float) -> None:
    state = steady(measured(5.0))
    for second in range(20):
        state = after(state, measured(5.0), 1.0, float(second))
    assert state.factor == pytest.approx(2.0, rel=0.1)
    state = grown(state, measured(latency_s, latency_s), 20)
    assert state.factor == pytest.approx(factor, rel=0.2)
    assert state.factor <= 3.01


def test_the_factor_of_broken_objectives_is_bounded_and_falls_sooner_than_others() -> None:
    state = steady(measured(1.5), 3.9)
    for second in range(60):
        state = after(state, measured(9.0), 1.0, float(second))
    assert state.factor == pytest.approx(MOST_FACTOR, rel=0.01)
    for second in range(60, 60 + int(SETTINGS.correction_s)):
        state = after(state, measured(0.9), 1.0, float(second))
    assert state.factor < 2.5


def test_a_breach_for_which_the_pool_grows_already_corrects_slowly() -> None:
    state = steady(measured(1.5))
    for second in range(1, 30):
        state = after(state, measured(1.5), 0.5, float(second), is_enough=False)
    assert 1.0 < state.factor < 1.3


def test_a_breach_that_ends_begins_anew() -> None:
    state = steady(measured(1.5))
    for second in range(100):
        state = after(state, measured(1.5 if second % 8 else 0.5), 0.5, float(second))
    assert state.factor < 1.5


def test_a_small_sample_of_a_broken_objective_corrects_by_parts() -> None:
    few = pool(1, latencies=(ReplicaLatency(100.0, 20, 1.5),))
    assert 1.0 < corrected(11, few, 0.5) < 1.3


def test_a_breach_that_may_be_chance_corrects_slowly() -> None:
    """Of 100 samples 5 are beyond the quantile, and it is two fifths too high in some minute of an hour."""
    many = pool(1, latencies=(ReplicaLatency(1000.0, 10_000, 1.25),))
    assert 1.0 < corrected(20, measured(1.4), 1.0) < 1.1
    assert corrected(20, many, 1.0) == pytest.approx(1.25, rel=0.01)


def test_the_factor_explains_a_wait_near_saturation() -> None:
    """Twice the wait of a queue with a load of 0.9 takes a load of 0.947, and not twice the service time."""
    assert factor_for(lambda factor: 1 / max(1e-9, 1 - 0.9 * factor), 20.0, 0.5, 10.0) == pytest.approx(
        1.0556, rel=1e-2
    )


def test_the_correction_factor_is_bounded() -> None:
    assert corrected(10_000, measured(0.9), 0.1) == pytest.approx(SETTINGS.max_correction, rel=0.01)
    assert corrected(10_000, measured(0.001), 0.1) == pytest.approx(1 / SETTINGS.max_correction, rel=0.01)


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


def test_a_small_sample_has_a_small_weight() -> None:
    few, many = (corrected(60, pool(1, latencies=(ReplicaLatency(100.0, count, 0.6),)), 0.4) for count in (20, 200))
    assert few == pytest.approx(1.5 ** (1 - exp(-60 / 5 / SETTINGS.correction_s)), rel=0.01)  # one of five beyond it
    assert many == pytest.approx(1.5 ** (1 - exp(-60 / SETTINGS.correction_s)), rel=0.01)


@pytest.mark.parametrize("num_decode", [1, 2])
def test_recently_resized_pools_correct_nothing(num_decode: int) -> None:
    seen = measured(5.0) if num_decode == 2 else measured(5.0, 5.0)  # either pool has grown from one replica
    state = Correction(num_ready=ByPool(1, 1), steady_since_s=-WINDOW_S)
    for second in range(int(WINDOW_S)):
        state = after(state, seen, 0.5, float(second), num_decode=num_decode)
    assert state.factor == 1.0
    assert after(state, seen, 0.5, WINDOW_S, num_decode=num_decode).factor > 1.0


def test_an_overloaded_pool_corrects_only_towards_faster() -> None:
    """A model that predicts an endless wait is too slow if the objective is kept, and is not blamed otherwise."""
    assert corrected(100, measured(30.0), inf) == 1.0
    assert corrected(100, measured(0.5), inf, start=2.0) < 2.0


def test_a_long_gap_does_not_count_as_evidence() -> None:
    paused = after(steady(measured(0.6)), measured(0.6), 0.4, 10_000.0)
    assert paused.factor < 1.1
    back = replace(paused, updated_s=20_000.0, steady_since_s=0.0)
    assert after(back, measured(0.6), 0.4, 15_000.0).factor == paused.factor


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

"""Capacity of decode replicas, limited by TPOT and by KV."""

import math

import pytest

from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from baton.deployment.autoscaling.prediction.kv_demand import mean_context
from baton.deployment.autoscaling.prediction.pool_model import smallest_size
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, Traffic
from tests.unit.deployment.autoscaling_models import decode_model
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, traffic


def num_places(load: Traffic, seen: DecodeSnapshot, factor: float = 1.0) -> int:
    return DecodeModel.of(load, seen, SETTINGS, factor).places


def test_decode_runs_as_many_sequences_as_tpot_allows() -> None:
    places = num_places(traffic(1.0), decode(pool()))
    assert places == 41  # 10 ms and 40 further sequences
    assert num_places(traffic(1.0), decode(pool(), max_num_seqs=8)) == 8
    assert num_places(traffic(1.0), decode(pool(), sequence_s=0.0)) == 64
    assert num_places(traffic(1.0), decode(pool()), 2.0) == 16  # 20 ms and 2 ms each


def test_decode_runs_only_as_many_sequences_as_fit_the_kv_cache() -> None:
    long = traffic(1.0, prompt=20_000, output=100)
    assert mean_context(long, decode(pool())) == pytest.approx(
        20_100
    )  # E[O^2] / 2 E[O] is 100: long outputs are observed longer
    assert num_places(long, decode(pool())) == 17  # of 0.9 * 400,000
    assert num_places(long, decode(pool(), kv_tokens=0)) == 41
    assert num_places(long, decode(pool(), kv_tokens=10_000)) == 1
    shared = decode(
        pool(), num_running=20, kv_used_tokens=20 * 11_000
    )  # half of each prompt is shared and counted once
    assert num_places(long, shared) == 32


def test_an_unreachable_tpot_is_approached() -> None:
    assert num_places(traffic(1.0), decode(pool(), step_s=0.1)) == 11


def test_decode_concurrency_follows_littles_law() -> None:
    model = decode_model()
    mean = model.mean_sequences(2, 15.0)
    assert mean == pytest.approx(15.0 / 2 * 100 * model.step_time_s(mean))
    assert model.mean_sequences(1, 0.5) == pytest.approx(0.5)  # below one sequence the step time is constant
    assert model.mean_sequences(1, 11.0) == math.inf  # more tokens than steps of any size can generate


def test_decode_keeps_spare_places_for_fluctuation() -> None:
    model = decode_model()
    mean = model.mean_sequences(4, 30.0)
    assert model.most_sequences(4, 30.0) == pytest.approx(mean + 1.6449 * math.sqrt(mean / 4), rel=1e-4)
    bursty = DecodeModel.of(traffic(30.0, arrival_cv2=9.0), decode(pool()), SETTINGS, 1.0)
    assert bursty.most_sequences(4, 30.0) == pytest.approx(mean + 1.6449 * math.sqrt(5 * mean / 4), rel=1e-4)
    full = model.full_rate(4)
    assert model.mean_sequences(4, full) == pytest.approx(model.places)
    assert smallest_size(model, full, 1, 100) == 5  # four have places for the mean only


def test_waiting_sequences_do_not_slow_a_full_replicas_steps() -> None:
    crowded, starved = decode_model(), decode_model(kv_tokens=24_000)  # sequences of 2,100 tokens fill 0.9 of it
    assert crowded.predicted_s(1, 9.0) == crowded.step_time_s(64)
    assert starved.predicted_s(1, 9.0) == starved.step_time_s(10)
    assert crowded.predicted_s(4, 9.0) < crowded.step_time_s(10)

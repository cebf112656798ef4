"""The smallest pool size that sustains a load."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from baton.deployment.autoscaling.prediction.pool_model import PoolModel, smallest_size
from baton.deployment.autoscaling.prediction.prefill_model import PrefillModel
from baton.deployment.autoscaling.settings import SLO
from tests.unit.deployment.autoscaling_models import decode_model, prefill_model
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, prefill, traffic


def test_a_slower_model_needs_more_replicas() -> None:
    assert prefill_model(factor=2.0).service.mean == pytest.approx(0.4)
    assert decode_model(factor=2.0).step_time_s(11) == pytest.approx(0.04)


@pytest.mark.parametrize("num_replicas", [1, 2, 5, 40])
def test_a_pools_rate_is_the_highest_that_meets_the_slo(num_replicas: int) -> None:
    by_kv = decode_model(prompt_token_s=50_000.0, kv_tokens=40_000)
    models: tuple[PoolModel, ...] = (prefill_model(), decode_model(), by_kv)
    for model in models:
        rate = model.rate(num_replicas)
        assert model.holds(num_replicas, rate * 0.999)
        assert not model.holds(num_replicas, rate * 1.001)
        assert model.rate(0) == 0.0


@settings(max_examples=60)
@given(st.floats(0.01, 200), st.floats(50, 5000), st.floats(1, 2000), st.integers(1, 30))
def test_the_smallest_size_equals_that_of_a_linear_search(
    rate: float, prompt: float, output: float, least: int
) -> None:
    load = traffic(rate, prompt, output)
    models: tuple[PoolModel, ...] = (
        PrefillModel.of(load, prefill(pool()), SLO(), 1.0),
        DecodeModel.of(load, decode(pool()), SETTINGS, 1.0),
    )
    for model in models:
        counted = next((size for size in range(least, 60) if model.holds(size, rate)), 60)
        assert smallest_size(model, rate, least, 60) == counted

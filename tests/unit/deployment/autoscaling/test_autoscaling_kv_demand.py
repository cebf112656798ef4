"""KV held by prompts and outputs, compared with a simulated pool."""

import numpy as np
import pytest

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from baton.deployment.autoscaling.prediction.pool_model import smallest_size
from tests.unit.deployment.autoscaling_models import decode_model
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, traffic


def test_decode_holds_kv_from_admission_on() -> None:
    """A prompt of 2,000 tokens is held for a second of decoding, and for three before that."""
    alone, held = (decode_model(kv_tokens=100_000, prompt_token_s=token_s) for token_s in (0.0, 6000.0))
    assert alone.kv.mean_tokens(10.0, 5.0) == pytest.approx(10 * 2100)
    assert held.kv.mean_tokens(10.0, 5.0) == pytest.approx(10 * 2100 + 5 * 6000)
    assert smallest_size(alone, 20.0, 1, 100) == 3  # of 41 sequences each
    assert smallest_size(held, 20.0, 1, 100) == 4
    full = held.full_rate(2)
    assert full < 0.9 * alone.full_rate(2)
    assert held.kv.mean_tokens(held.mean_sequences(2, full), full / 2) == pytest.approx(held.kv.tokens)
    assert held.step_time_s(41) == alone.step_time_s(41)  # sequences that receive KV take no part in steps
    assert decode_model(kv_tokens=0, prompt_token_s=6000.0).full_rate(2) == alone.full_rate(2)


def test_a_few_long_prompts_need_more_kv_than_many_short_ones() -> None:
    even = traffic(20.0, prompt_tokens=Moments(2000, 2000 * 2000))
    varied = traffic(20.0, prompt_tokens=Moments(2000, 20 * 2000 * 2000))
    seen = decode(pool(), kv_tokens=60_000)
    needs = [smallest_size(DecodeModel.of(load, seen, SETTINGS, 1.0), 20.0, 1, 100) for load in (even, varied)]
    assert needs == [3, 4]


def held_tokens(rate: float, prompts: np.ndarray, receiving_s: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return the tokens that an unbounded pool holds, once a second; a token takes 20 ms."""
    random = np.random.default_rng(0)
    arrivals = np.cumsum(random.exponential(1 / rate, len(prompts)))
    decodes, ends = arrivals + receiving_s, arrivals + receiving_s + 0.02 * outputs
    times = np.arange(ends[0] + 100, arrivals[-1])
    return np.array(
        [np.sum((prompts + np.maximum(0, at - decodes) / 0.02)[(arrivals <= at) & (at < ends)]) for at in times]
    )


@pytest.mark.parametrize(("sigma", "error"), [(0.0, 0.1), (0.8, 0.1), (1.2, 0.3)])
def test_predicted_kv_matches_a_simulated_pool(sigma: float, error: float) -> None:
    """For the longest prompts, which also compute longest, two moments are not enough."""
    random, count, rate = np.random.default_rng(1), 20_000, 4.0
    prompts = random.lognormal(np.log(4000) - sigma**2 / 2, sigma, count)
    outputs = random.exponential(200.0, count)
    receiving_s = 1.0 + prompts / 4000  # a constant wait, and a computation of a second
    load = traffic(rate, prompt_tokens=Moments.of(prompts), output_tokens=Moments.of(outputs))
    model = DecodeModel.of(
        load, decode(pool(), step_s=0.02, sequence_s=0.0), SETTINGS, 1.0, float(np.mean(prompts * receiving_s))
    )
    mean = model.kv.mean_tokens(model.mean_sequences(1, rate), rate)
    measured = held_tokens(rate, prompts, receiving_s, outputs)
    assert mean == pytest.approx(float(np.mean(measured)), rel=0.05)
    most = model.kv.most_tokens(mean, model.deviations, model.peakedness, 1)
    assert most == pytest.approx(float(np.quantile(measured, 0.95)), rel=error)

"""Capacity of prefill replicas, compared with simulated queues."""

from dataclasses import replace

import numpy as np
import pytest

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.pool_model import UNREACHABLE_SLACK, smallest_size
from baton.deployment.autoscaling.prediction.prefill_model import PrefillModel
from baton.deployment.autoscaling.prediction.queueing import quantile_of, queue_wait
from baton.deployment.autoscaling.settings import SLO
from tests.marks import each_value
from tests.unit.deployment.autoscaling_models import prefill_model
from tests.unit.deployment.autoscaling_snapshots import exponential, pool, prefill, traffic


def simulated_quantile(num_servers: int, rate: float, services: np.ndarray, gaps: np.ndarray, quantile: float) -> float:
    """Return the TTFT quantile of a simulated first-come, first-served queue."""
    free = [0.0] * num_servers
    times, now = [], 0.0
    for gap, service in zip(gaps / rate, services, strict=True):
        now += gap
        server = min(range(num_servers), key=free.__getitem__)
        free[server] = max(now, free[server]) + service
        times.append(free[server] - now)
    return float(np.quantile(times[len(times) // 10 :], quantile))


@each_value
@pytest.mark.parametrize("num_servers", [1, 4, 12])
@pytest.mark.parametrize("utilisation", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("kind", ["even", "exponential", "log-normal"])
def test_predicted_ttft_matches_a_simulated_queue(num_servers: int, utilisation: float, kind: str) -> None:
    random, count = np.random.default_rng(num_servers), 40_000
    tokens = {
        "even": np.full(count, 2000.0),
        "exponential": random.exponential(2000.0, count),
        "log-normal": random.lognormal(np.log(2000) - 0.5, 1.0, count),
    }[kind]
    uncached = Moments.of(tokens)
    rate = utilisation * num_servers / (uncached.mean / 10_000)
    load = traffic(rate, uncached_tokens=uncached)
    model = PrefillModel.of(load, prefill(pool()), SLO(), 1.0)
    measured_s = simulated_quantile(num_servers, rate, tokens / 10_000, random.exponential(1.0, count), 0.95)
    assert model.predicted_s(num_servers, rate) == pytest.approx(measured_s, rel=0.3)


def test_prefill_needs_more_replicas_than_are_busy_because_prompts_queue() -> None:
    rate = 19.0  # work for 3.8 replicas
    model = prefill_model(rate)
    assert smallest_size(model, rate, 1, 100) == 5
    assert model.predicted_s(4, rate) > SLO().ttft_s > model.predicted_s(5, rate)
    hurried = prefill_model(rate, replace(SLO(), ttft_s=0.7))
    assert smallest_size(hurried, rate, 1, 100) == 6


def test_irregular_arrivals_need_more_prefill() -> None:
    load = traffic(19.0, arrival_cv2=9.0)
    bursty = PrefillModel.of(load, prefill(pool()), SLO(), 1.0)
    assert smallest_size(bursty, 19.0, 1, 100) == 6


def test_cached_tokens_need_no_prefill() -> None:
    warm = traffic(19.0, uncached_tokens=exponential(500))
    assert smallest_size(PrefillModel.of(warm, prefill(pool()), SLO(), 1.0), 19.0, 1, 100) == 2


def test_a_mean_hit_rate_is_interpreted_conservatively() -> None:
    uncached = exponential(2000).uncached(0.75)
    assert uncached.mean == 500
    assert uncached.cv2 == pytest.approx(
        7.0
    )  # a quarter of the prompts is cached whole: the largest variance with this mean


def test_the_handover_counts_towards_ttft() -> None:
    assert prefill_model(handover_s=0.4).predicted_s(5, 1.0) == pytest.approx(prefill_model().predicted_s(5, 1.0) + 0.4)
    assert smallest_size(prefill_model(handover_s=0.3), 19.0, 1, 100) == 6


def test_an_unreachable_ttft_is_approached() -> None:
    model = prefill_model(slo=replace(SLO(), ttft_s=0.1))
    alone_s = quantile_of(0.2, 0.04, 0.95)
    assert model.ttft_s == pytest.approx(UNREACHABLE_SLACK * alone_s)
    assert smallest_size(model, 19.0, 1, 100) == 6  # not a hundred


def test_prompts_are_held_until_their_first_token() -> None:
    model = prefill_model(rate=8.0, handover_s=0.1)
    prompt = exponential(2000)
    wait = queue_wait(2, 8.0, model.service, 1.0)
    assert wait is not None
    expected = 2000 * (wait.mean + 0.1) + prompt.second / 10_000  # E[P * P / 10,000]
    assert model.prompt_token_s(prompt, 2, 8.0) == pytest.approx(expected)
    for overrun in (8.0, 4.999):  # unbounded, or minutes: no decode replica can shorten that
        held = model.prompt_token_s(prompt, 1, overrun)
        assert held == pytest.approx(2000 * (1.0 + 0.1) + prompt.second / 10_000)

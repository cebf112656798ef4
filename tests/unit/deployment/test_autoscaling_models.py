"""What pools of a size can do, against textbooks and against simulated queues."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.autoscaling.backlog import Backlog
from deployment.autoscaling.decode_model import DecodeModel
from deployment.autoscaling.kv_demand import mean_context
from deployment.autoscaling.moments import Moments
from deployment.autoscaling.need import decode_need, full_pool_rate, prefill_need
from deployment.autoscaling.pool_model import UNREACHABLE_SLACK, PoolModel, smallest_size
from deployment.autoscaling.prefill_model import PrefillModel
from deployment.autoscaling.queueing import erlang_c, quantile_of, queue_wait
from deployment.autoscaling.settings import SLO
from deployment.autoscaling.snapshot import DecodeSnapshot, ReplicaLatency, Traffic
from tests.unit.deployment.autoscaling_snapshots import (
    SETTINGS,
    decode,
    exponential,
    pool,
    prefill,
    snapshot,
    traffic,
)


def prefill_model(rate: float = 1.0, slo: SLO = SLO(), factor: float = 1.0, handover_s: float = 0.0) -> PrefillModel:  # noqa: B008
    return PrefillModel.of(traffic(rate), prefill(pool(), handover_s=handover_s), slo, factor)


def decode_model(rate: float = 1.0, factor: float = 1.0, prompt_token_s: float = 0.0, **changes: float) -> DecodeModel:
    return DecodeModel.of(traffic(rate), decode(pool(), **changes), SETTINGS, factor, prompt_token_s)


def num_places(load: Traffic, seen: DecodeSnapshot, factor: float = 1.0) -> int:
    return DecodeModel.of(load, seen, SETTINGS, factor).places


@pytest.mark.parametrize(
    ("num_servers", "load", "probability"),
    [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (10, 8.0, 0.40918), (5, 0.0, 0.0), (4, 4.0, 1.0), (2, 3.0, 1.0)],
)
def test_erlang_c_is_as_tabled(num_servers: int, load: float, probability: float) -> None:
    assert erlang_c(num_servers, load) == pytest.approx(probability, rel=1e-4)


def test_erlang_c_takes_any_number_of_servers() -> None:
    assert erlang_c(10_000, 9_990.0) == pytest.approx(0.8805, rel=0.001)
    assert erlang_c(10_000, 100.0) == 0.0


def test_one_exponential_server_waits_as_in_textbooks() -> None:
    wait = queue_wait(1, 0.8, exponential(1.0), 1.0)
    assert wait is not None
    assert wait.mean == pytest.approx(0.8 / 0.2)
    assert wait.probability == pytest.approx(0.8)
    assert wait.variance == pytest.approx(25 * (2 - 0.8) * 0.8)  # rho (2 - rho) / (mu - lambda)^2


def test_service_that_never_varies_halves_the_wait() -> None:
    varied, even = queue_wait(3, 2.0, exponential(1.0), 1.0), queue_wait(3, 2.0, Moments(1.0, 1.0), 1.0)
    assert varied is not None
    assert even is not None
    assert even.mean == pytest.approx(varied.mean / 2)  # Pollaczek and Khinchine, for one server


def test_a_queue_that_is_overrun_has_no_mean() -> None:
    assert queue_wait(2, 2.0, exponential(1.0), 1.0) is None


def test_the_quantile_is_that_of_a_log_normal_variable() -> None:
    mean, variance = math.exp(0.5), (math.e - 1) * math.e  # mu 0, sigma 1
    assert quantile_of(mean, variance, 0.95) == pytest.approx(math.exp(1.6449), rel=1e-3)
    assert quantile_of(2.0, 0.0, 0.95) == 2.0
    assert quantile_of(0.0, 0.0, 0.95) == 0.0


@given(st.floats(0.01, 10), st.floats(0, 100), st.floats(0, 100))
def test_more_variance_never_lowers_the_quantile(mean: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert quantile_of(mean, low, 0.95) <= quantile_of(mean, high, 0.95) * (1 + 1e-9)


def simulated_quantile(num_servers: int, rate: float, services: np.ndarray, gaps: np.ndarray, quantile: float) -> float:
    """TTFT's quantile of a queue in order of arrival."""
    free = [0.0] * num_servers
    times, now = [], 0.0
    for gap, service in zip(gaps / rate, services, strict=True):
        now += gap
        server = min(range(num_servers), key=free.__getitem__)
        free[server] = max(now, free[server]) + service
        times.append(free[server] - now)
    return float(np.quantile(times[len(times) // 10 :], quantile))


@pytest.mark.parametrize("num_servers", [1, 4, 12])
@pytest.mark.parametrize("utilisation", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("kind", ["even", "exponential", "log-normal"])
def test_ttft_is_predicted_as_a_simulated_queue_has_it(num_servers: int, utilisation: float, kind: str) -> None:
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
    rate = 19.0  # 3.8 replicas' work
    model = prefill_model(rate)
    assert smallest_size(model, rate, 1, 100) == 5
    assert model.predicted_s(4, rate) > SLO().ttft_s > model.predicted_s(5, rate)
    hurried = prefill_model(rate, replace(SLO(), ttft_s=0.7))
    assert smallest_size(hurried, rate, 1, 100) == 6


def test_irregular_arrivals_need_more_prefill() -> None:
    load = traffic(19.0, arrival_cv2=9.0)
    bursty = PrefillModel.of(load, prefill(pool()), SLO(), 1.0)
    assert smallest_size(bursty, 19.0, 1, 100) == 6


def test_what_is_cached_needs_no_prefill() -> None:
    warm = traffic(19.0, uncached_tokens=exponential(500))
    assert smallest_size(PrefillModel.of(warm, prefill(pool()), SLO(), 1.0), 19.0, 1, 100) == 2


def test_a_hit_rate_alone_is_taken_cautiously() -> None:
    uncached = exponential(2000).uncached(0.75)
    assert uncached.mean == 500
    assert uncached.cv2 == pytest.approx(7.0)  # a quarter of the prompts whole: at this mean nothing varies more


def test_the_handover_counts_to_the_first_token() -> None:
    assert prefill_model(handover_s=0.4).predicted_s(5, 1.0) == pytest.approx(prefill_model().predicted_s(5, 1.0) + 0.4)
    assert smallest_size(prefill_model(handover_s=0.3), 19.0, 1, 100) == 6


def test_a_ttft_that_no_size_reaches_is_neared() -> None:
    model = prefill_model(slo=replace(SLO(), ttft_s=0.1))
    alone_s = quantile_of(0.2, 0.04, 0.95)
    assert model.ttft_s == pytest.approx(UNREACHABLE_SLACK * alone_s)
    assert smallest_size(model, 19.0, 1, 100) == 6  # not a hundred


def test_a_slower_model_needs_more() -> None:
    assert prefill_model(factor=2.0).service.mean == pytest.approx(0.4)
    assert decode_model(factor=2.0).step_time_s(11) == pytest.approx(0.04)


@pytest.mark.parametrize("num_replicas", [1, 2, 5, 40])
def test_a_pools_rate_is_the_most_that_holds(num_replicas: int) -> None:
    by_kv = decode_model(prompt_token_s=50_000.0, kv_tokens=40_000)
    models: tuple[PoolModel, ...] = (prefill_model(), decode_model(), by_kv)
    for model in models:
        rate = model.rate(num_replicas)
        assert model.holds(num_replicas, rate * 0.999)
        assert not model.holds(num_replicas, rate * 1.001)
        assert model.rate(0) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 200), st.floats(50, 5000), st.floats(1, 2000), st.integers(1, 30))
def test_the_smallest_size_is_what_counting_up_finds(rate: float, prompt: float, output: float, least: int) -> None:
    load = traffic(rate, prompt, output)
    models: tuple[PoolModel, ...] = (
        PrefillModel.of(load, prefill(pool()), SLO(), 1.0),
        DecodeModel.of(load, decode(pool()), SETTINGS, 1.0),
    )
    for model in models:
        counted = next((size for size in range(least, 60) if model.holds(size, rate)), 60)
        assert smallest_size(model, rate, least, 60) == counted


def test_decode_runs_as_many_sequences_as_tpot_allows() -> None:
    places = num_places(traffic(1.0), decode(pool()))
    assert places == 41  # 10 ms and 40 more
    assert num_places(traffic(1.0), decode(pool(), max_num_seqs=8)) == 8
    assert num_places(traffic(1.0), decode(pool(), sequence_s=0.0)) == 64
    assert num_places(traffic(1.0), decode(pool()), 2.0) == 16  # 20 ms and 2 ms each


def test_decode_runs_no_more_sequences_than_kv_holds() -> None:
    long = traffic(1.0, prompt=20_000, output=100)
    assert mean_context(long, decode(pool())) == pytest.approx(20_100)  # E[O^2] / 2 E[O] is 100: long ones stay longer
    assert num_places(long, decode(pool())) == 17  # of 0.9 * 400,000
    assert num_places(long, decode(pool(), kv_tokens=0)) == 41
    assert num_places(long, decode(pool(), kv_tokens=10_000)) == 1
    shared = decode(pool(), num_running=20, kv_used_tokens=20 * 11_000)  # half of each prompt is held once
    assert num_places(long, shared) == 32


def test_a_step_that_is_too_slow_for_any_tpot_is_neared() -> None:
    assert num_places(traffic(1.0), decode(pool(), step_s=0.1)) == 11


def test_decode_concurrency_follows_littles_law() -> None:
    model = decode_model()
    mean = model.mean_sequences(2, 15.0)
    assert mean == pytest.approx(15.0 / 2 * 100 * model.step_time_s(mean))
    assert model.mean_sequences(1, 0.5) == pytest.approx(0.5)  # under one sequence, a step is a step
    assert model.mean_sequences(1, 11.0) == math.inf  # more tokens than steps of any size give


def test_decode_keeps_places_for_fluctuation() -> None:
    model = decode_model()
    mean = model.mean_sequences(4, 30.0)
    assert model.most_sequences(4, 30.0) == pytest.approx(mean + 1.6449 * math.sqrt(mean / 4), rel=1e-4)
    bursty = DecodeModel.of(traffic(30.0, arrival_cv2=9.0), decode(pool()), SETTINGS, 1.0)
    assert bursty.most_sequences(4, 30.0) == pytest.approx(mean + 1.6449 * math.sqrt(5 * mean / 4), rel=1e-4)
    full = model.full_rate(4)
    assert model.mean_sequences(4, full) == pytest.approx(model.places)
    assert smallest_size(model, full, 1, 100) == 5  # four have places for the mean alone


def test_a_full_replica_steps_no_slower_for_those_that_wait() -> None:
    crowded, starved = decode_model(), decode_model(kv_tokens=24_000)  # of which sequences of 2,100 fill 0.9
    assert crowded.predicted_s(1, 9.0) == crowded.step_time_s(64)
    assert starved.predicted_s(1, 9.0) == starved.step_time_s(10)
    assert crowded.predicted_s(4, 9.0) < crowded.step_time_s(10)


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
    assert held.step_time_s(41) == alone.step_time_s(41)  # who receives takes no part in steps
    assert decode_model(kv_tokens=0, prompt_token_s=6000.0).full_rate(2) == alone.full_rate(2)


def test_a_few_long_prompts_need_more_kv_than_many_short_ones() -> None:
    even = traffic(20.0, prompt_tokens=Moments(2000, 2000 * 2000))
    varied = traffic(20.0, prompt_tokens=Moments(2000, 20 * 2000 * 2000))
    seen = decode(pool(), kv_tokens=60_000)
    needs = [smallest_size(DecodeModel.of(load, seen, SETTINGS, 1.0), 20.0, 1, 100) for load in (even, varied)]
    assert needs == [3, 4]


def held_tokens(rate: float, prompts: np.ndarray, receiving_s: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """What a pool without bounds holds, once a second, where a token takes 20 ms."""
    random = np.random.default_rng(0)
    came = np.cumsum(random.exponential(1 / rate, len(prompts)))
    decodes, ends = came + receiving_s, came + receiving_s + 0.02 * outputs
    times = np.arange(ends[0] + 100, came[-1])
    return np.array(
        [np.sum((prompts + np.maximum(0, at - decodes) / 0.02)[(came <= at) & (at < ends)]) for at in times]
    )


@pytest.mark.parametrize(("sigma", "error"), [(0.0, 0.1), (0.8, 0.1), (1.2, 0.3)])
def test_held_kv_is_predicted_as_it_is(sigma: float, error: float) -> None:
    """Of the longest prompts, that are computed for longest too, two moments tell too little."""
    random, count, rate = np.random.default_rng(1), 20_000, 4.0
    prompts = random.lognormal(np.log(4000) - sigma**2 / 2, sigma, count)
    outputs = random.exponential(200.0, count)
    receiving_s = 1.0 + prompts / 4000  # a wait that all have, and a computation of a second
    load = traffic(rate, prompt_tokens=Moments.of(prompts), output_tokens=Moments.of(outputs))
    model = DecodeModel.of(
        load, decode(pool(), step_s=0.02, sequence_s=0.0), SETTINGS, 1.0, float(np.mean(prompts * receiving_s))
    )
    mean = model.kv.mean_tokens(model.mean_sequences(1, rate), rate)
    measured = held_tokens(rate, prompts, receiving_s, outputs)
    assert mean == pytest.approx(float(np.mean(measured)), rel=0.05)
    most = model.kv.most_tokens(mean, model.deviations, model.peakedness, 1)
    assert most == pytest.approx(float(np.quantile(measured, 0.95)), rel=error)


def test_prompts_are_held_until_their_first_token() -> None:
    model = prefill_model(rate=8.0, handover_s=0.1)
    prompt = exponential(2000)
    wait = queue_wait(2, 8.0, model.service, 1.0)
    assert wait is not None
    expected = 2000 * (wait.mean + 0.1) + prompt.second / 10_000  # E[P * P / 10,000]
    assert model.prompt_token_s(prompt, 2, 8.0) == pytest.approx(expected)
    for overrun in (8.0, 4.999):  # without end, or for minutes: no decode replica mends that
        held = model.prompt_token_s(prompt, 1, overrun)
        assert held == pytest.approx(2000 * (1.0 + 0.1) + prompt.second / 10_000)


def test_a_backlog_that_will_be_gone_needs_nothing() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=1.0, done_per_s=1.0)
    assert backlog.left(pool(2), 0.0, 30.0) == 0.0
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 100) == 0


def test_a_backlog_that_stays_is_cleared_in_the_time_of_a_start() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=3.0, done_per_s=1.0)
    assert backlog.left(pool(2), 0.0, 30.0) == 20 + 30
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 100) == 5  # 3 for what comes, 50 / 30 for what is left
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 4) == 4  # there are no more
    assert backlog.need(pool(2), 0.0, 0.5, 1.0, 100) == 24  # a start that is quick enough saves who waits: within TTFT


def test_replicas_that_are_starting_help_with_the_backlog() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=3.0, done_per_s=1.0)
    helped = pool(2, starting_since_s=(0.0, 10.0))
    assert backlog.left(helped, 20.0, 30.0) == 20 + 30 - 20 - 10


def test_a_long_wait_is_a_backlog_whatever_the_queue_is_said_to_hold() -> None:
    silent = Backlog(queued=0.0, arriving_per_s=1.5, done_per_s=1.0)
    assert silent.need(pool(2), 0.0, 30.0, 1.0, 100) == 0
    assert silent.need(pool(2, oldest_wait_s=40.0), 0.0, 30.0, 1.0, 100) == 3


def test_replicas_that_get_nothing_done_are_needed_as_many_as_there_may_be() -> None:
    idle = Backlog(queued=0.0, arriving_per_s=0.0, done_per_s=0.0)
    assert idle.need(pool(2), 0.0, 30.0, 1.0, 7) == 0
    for hardly in (0.0, 1e-300):
        assert replace(idle, done_per_s=hardly, queued=1.0).need(pool(2), 0.0, 30.0, 1.0, 7) == 7
    full = decode(pool(1), kv_tokens=2000)  # a prompt that is held for so long before its first token fits nowhere
    assert DecodeModel.of(traffic(1.0), full, SETTINGS, 1.0, 1e15).full_rate(1) == 0.0
    assert decode_need(snapshot(decode=full), SETTINGS, 1.0, 7, 1e15).least == 7


def test_no_need_is_more_than_there_may_be() -> None:
    """However slow: whoever predicts goes through that number."""
    slow = snapshot(prefill=prefill(pool(), tokens_per_s=0.01, queued_tokens=1e6))
    found = prefill_need(slow, SETTINGS, 1.0, 15)
    assert (found.least, found.sure, found.keep, found.queue) == (15, 15, 15, 15)
    stuck = snapshot(decode=decode(pool(), step_s=1e3, num_waiting=1000))
    found = decode_need(stuck, SETTINGS, 1.0, 15, 0.0)
    assert (found.least, found.sure, found.queue) == (15, 15, 15)


def test_a_full_pool_does_what_it_does_whatever_the_model_expects() -> None:
    """Three replicas for a minute, one for three quarters of it, half of which it warmed up; and one that came now."""
    ready_for_s = (1000.0, 90.0, 600.0, 45.0, 10.0)
    times = tuple(ReplicaLatency(each, 100, 0.03) for each in ready_for_s)
    full = decode(pool(5, latencies=times), num_running=200, num_waiting=40)
    load = traffic(10.0, num_ended=390)
    assert full_pool_rate(load, full, SETTINGS) == pytest.approx(390 / (3 * 60 + 15))
    assert full_pool_rate(load, replace(full, num_waiting=9), SETTINGS) == math.inf  # for less than a second
    assert full_pool_rate(replace(load, num_ended=0), full, SETTINGS) == math.inf
    assert full_pool_rate(load, decode(pool(5, latencies=times[4:]), num_waiting=40), SETTINGS) == math.inf
    expected = decode_need(snapshot(load=replace(load, num_ended=0), decode=full), SETTINGS, 1.0, 50, 0.0)
    assert expected.least < 5
    assert decode_need(snapshot(load=load, decode=full), SETTINGS, 1.0, 50, 0.0).least > 5


def test_prefill_replicas_are_for_the_prompts_that_come_to_them() -> None:
    """Of 80 requests a second 20 have 2,000 tokens for a prefill worker; decode workers compute the other prompts."""
    mixed = traffic(80.0, prompt=500, remote_share=0.25, remote_tokens=exponential(2000))
    alone = traffic(20.0, prompt=2000)
    needs = [prefill_need(snapshot(load=load), SETTINGS, 1.0, 100) for load in (mixed, alone)]
    assert needs[0].least == needs[1].least
    assert needs[0].sure == needs[1].sure
    assert needs[0].model is not None
    assert needs[1].model is not None
    assert needs[0].model.rate(8) == pytest.approx(4 * needs[1].model.rate(8), rel=1e-3)
    everything = replace(mixed, remote_share=1.0)
    assert prefill_need(snapshot(load=everything), SETTINGS, 1.0, 100).least > 3 * needs[0].least
    # Without a replica nobody can tell how many would come.
    nobody = snapshot(load=replace(mixed, remote_share=0.0, remote_tokens=Moments()), prefills=pool(0))
    assert prefill_need(nobody, SETTINGS, 1.0, 100).least > 1

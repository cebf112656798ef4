"""Rates estimated from step times."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates, StepTimes, StepWork
from tests.checkpoints import make_checkpoint

STEP_S, SEQUENCE_S, TOKENS_PER_S = 0.01, 0.0001, 20_000.0

Draw = Callable[[random.Random], StepWork]


def estimated_rates(draw: Draw, num_steps: int = 400, noise: float = 0.1, delayed_every: int = 0) -> StepRates:
    """Return the rates estimated from noisy steps of the linear model; some steps take 30 times as long."""
    rng, times = random.Random(1), StepTimes()
    for number in range(num_steps):
        work = draw(rng)
        step_s = STEP_S + SEQUENCE_S * work.num_sequences + work.num_prompt_tokens / TOKENS_PER_S
        step_s *= 1 + noise * rng.uniform(-1, 1)
        times.add(work, step_s * (30 if delayed_every and number % delayed_every == 0 else 1))
    return times.rates()


def mixed(rng: random.Random) -> StepWork:
    return StepWork(rng.randint(1, 60), rng.choice([0, 0, 0, rng.randint(1, 2000)]))


@pytest.mark.parametrize("delayed_every", [0, 37])
def test_mixed_steps_determine_all_terms(delayed_every: int) -> None:
    rates = estimated_rates(mixed, delayed_every=delayed_every)
    assert rates.prefill_tokens_per_s == pytest.approx(TOKENS_PER_S, rel=0.05)
    assert rates.decode_step_s == pytest.approx(STEP_S + SEQUENCE_S, rel=0.1)
    assert rates.decode_sequence_s == pytest.approx(SEQUENCE_S, rel=0.25)


def test_prompts_alone_determine_the_prefill_rate_and_the_fixed_time() -> None:
    rates = estimated_rates(lambda rng: StepWork(0, rng.randint(1, 2048)))
    assert rates.prefill_tokens_per_s == pytest.approx(TOKENS_PER_S, rel=0.05)
    assert rates.decode_step_s == pytest.approx(STEP_S, rel=0.1)


def test_equal_long_prompts_are_attributed_to_the_token_rate() -> None:
    rates = estimated_rates(lambda rng: StepWork(0, 2048))
    predicted_s = rates.decode_step_s + 2048 / rates.prefill_tokens_per_s
    assert predicted_s == pytest.approx(STEP_S + 2048 / TOKENS_PER_S, rel=0.05)
    assert 0.8 * TOKENS_PER_S < rates.prefill_tokens_per_s < TOKENS_PER_S


def test_equal_decodes_are_attributed_to_the_step_time() -> None:
    rates = estimated_rates(lambda rng: StepWork(20, 0))
    assert rates.decode_step_s == pytest.approx(STEP_S + 20 * SEQUENCE_S, rel=0.05)
    assert rates.decode_sequence_s < SEQUENCE_S


def test_the_prefill_rate_survives_many_decode_steps() -> None:
    times = StepTimes()
    for num_tokens in (256, 512, 1024, 2048):
        times.add(StepWork(0, num_tokens), STEP_S + num_tokens / TOKENS_PER_S)
    for number in range(5000):
        times.add(StepWork(1 + number % 50, 0), STEP_S + SEQUENCE_S * (1 + number % 50))
    assert times.rates().prefill_tokens_per_s == pytest.approx(TOKENS_PER_S, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_the_prefill_rate_is_stable_over_prompts_of_many_chunks(seed: int) -> None:
    """Late chunks take much longer with fewer tokens, since more and more sequences decode in the same step."""
    rng, times, rates = random.Random(seed), StepTimes(), []
    num_steps, chunk_budget, token_s = 20, 512, 1 / TOKENS_PER_S
    for number in range(15 * num_steps):
        chunk = number % num_steps
        num_sequences = 10 + 2 * chunk
        num_tokens = chunk_budget - num_sequences
        request = Request(RequestId("r"), [0] * 20_000, 20_000, SamplingParams(max_tokens=5))
        request.num_computed_tokens = chunk * chunk_budget
        decodes = [ScheduledRequest.of(request, 1)] * num_sequences
        work = StepWork.of([*decodes, ScheduledRequest.of(request, num_tokens)])
        depth = request.num_computed_tokens + num_tokens / 2
        step_s = STEP_S + SEQUENCE_S * num_sequences + num_tokens * token_s * (1 + depth / 2500)
        times.add(work, step_s * (1 + 0.05 * rng.uniform(-1, 1)))
        if number >= num_steps:
            rates.append(times.rates().prefill_tokens_per_s)
    mean_rate = TOKENS_PER_S / (1 + num_steps * chunk_budget / 2 / 2500)
    assert 0.6 * mean_rate < min(rates) < max(rates) < 2 * mean_rate


def test_rates_follow_a_change_of_speed() -> None:
    times, rng = StepTimes(), random.Random(2)
    for factor in (1, 3):
        for _ in range(600):
            work = mixed(rng)
            plain_s = STEP_S + SEQUENCE_S * work.num_sequences + work.num_prompt_tokens / TOKENS_PER_S
            times.add(work, factor * plain_s)
    assert times.rates().prefill_tokens_per_s == pytest.approx(TOKENS_PER_S / 3, rel=0.1)
    assert times.rates().decode_step_s == pytest.approx(3 * STEP_S, rel=0.1)


def test_rates_without_enough_samples_are_zero() -> None:
    assert StepTimes().rates() == StepRates()
    assert estimated_rates(lambda rng: StepWork(3, 0)).prefill_tokens_per_s == 0
    assert estimated_rates(lambda rng: StepWork(0, rng.randint(1, 20))).prefill_tokens_per_s == 0  # too few to estimate


def test_no_term_is_ever_negative() -> None:
    rng, times = random.Random(3), StepTimes()
    for _ in range(500):
        times.add(mixed(rng), rng.uniform(1e-6, 5))
        rates = times.rates()
        assert min(rates.prefill_tokens_per_s, rates.decode_step_s, rates.decode_sequence_s) >= 0


def test_an_engine_records_the_work_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StepWork] = []
    monkeypatch.setattr(StepTimes, "add", lambda times, work, step_s: seen.append(work))
    model = make_checkpoint("qwen3", tmp_path)
    config = EngineConfig(model=str(model), kv_cache_memory_bytes=1 << 20, max_num_batched_tokens=16, max_num_seqs=4)
    engine = Engine(config)
    engine.add(Request(RequestId("r"), list(range(5, 45)), 40, SamplingParams(max_tokens=3, ignore_eos=True)))
    while engine.has_work:
        engine.run(engine.schedule())
    chunks = [range(1, 17), range(17, 33), range(33, 41)]
    assert seen == [*(StepWork(0, len(each), sum(each)) for each in chunks), StepWork(1, 0), StepWork(1, 0)]
    assert engine.stats().num_prefilled_tokens == 40


def test_step_work_counts_sequences_and_prompt_tokens() -> None:
    request = Request(RequestId("r"), list(range(50)), 40, SamplingParams(max_tokens=5))
    scheduled = [ScheduledRequest.of(request, 1), ScheduledRequest.of(request, 1), ScheduledRequest.of(request, 30)]
    assert StepWork.of(scheduled) == StepWork(2, 30, sum(range(1, 31)))
    request.num_computed_tokens = 30
    assert StepWork.of([ScheduledRequest.of(request, 20)]) == StepWork(0, 20, sum(range(31, 51)))

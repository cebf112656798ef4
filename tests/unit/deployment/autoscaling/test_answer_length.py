"""Lengths of answers of which some still run, against simulated ones."""

from collections.abc import Callable

import numpy as np
import pytest

from baton.deployment.autoscaling.moments import FIRST_GUESS, Moments, answer_moments
from baton.router.policy import estimates as answer_length

RATE, TOKENS_PER_S = 20.0, 40.0  # requests, and tokens of each
LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "exponential": lambda random, num: random.exponential(400.0, num),
    "log-normal": lambda random, num: random.lognormal(np.log(400.0) - 0.5, 1.0, num),
    "alike": lambda _, num: np.full(num, 400.0),
}


def seen(lengths: np.ndarray, window: tuple[float, float], seed: int) -> tuple[Moments, int, float]:
    """Of answers that begin at random times from 0 on: those that ended in the window, and all tokens of it."""
    begins_s = np.random.default_rng(seed).uniform(0.0, len(lengths) / RATE, len(lengths))
    ends_s = begins_s + lengths / TOKENS_PER_S
    since_s, now_s = window
    ended = lengths[(ends_s >= since_s) & (ends_s < now_s)]
    lived_s = np.clip(np.minimum(ends_s, now_s) - np.maximum(begins_s, since_s), 0.0, None)
    return Moments.of(ended), len(ended), float(lived_s.sum() * TOKENS_PER_S)


@pytest.mark.parametrize("name", LENGTHS)
def test_as_many_end_as_begin(name: str) -> None:
    lengths = LENGTHS[name](np.random.default_rng(1), 4000)
    ended, num_ended, num_generated = seen(lengths, (100.0, 160.0), 2)
    found = answer_moments(ended, num_ended, num_generated)
    assert found.mean == pytest.approx(400.0, rel=0.1)
    assert found.cv2 == pytest.approx(ended.cv2)


def test_those_that_ended_first_are_short() -> None:
    """Six seconds after the first request no answer is longer than 240 tokens."""
    ratios = []
    for seed in range(20):
        ended, num_ended, num_generated = seen(LENGTHS["exponential"](np.random.default_rng(seed), 1000), (0, 6), seed)
        assert ended.mean < 120
        ratios.append(answer_moments(ended, num_ended, num_generated).mean / 400)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)
    assert 0.4 < min(ratios) < max(ratios) < 1.8  # of twenty ends or so


def test_answers_are_no_longer_than_was_asked_for() -> None:
    ended, num_ended, num_generated = seen(LENGTHS["alike"](np.random.default_rng(0), 1000), (0.0, 10.5), 0)
    assert answer_moments(ended, num_ended, num_generated).mean > 2000  # hardly any has ended
    assert answer_moments(ended, num_ended, num_generated, 400.0).mean == 400.0


def test_until_one_has_ended_the_next_token_may_be_an_end() -> None:
    assert answer_moments(Moments(), 0, 300.0) == Moments(300.0, 180_000.0)
    assert answer_moments(Moments(), 0, 300.0, 100.0).mean == 100.0
    assert FIRST_GUESS == answer_length.LENGTH_FIRST_GUESS
    assert answer_moments(Moments(), 0, 0.0).mean == answer_moments(Moments(), 0, 10.0).mean == FIRST_GUESS


def test_where_tokens_are_not_counted_those_that_ended_are_all() -> None:
    ended = Moments(7.0, 60.0)
    assert answer_moments(ended, 3, None) == ended
    assert answer_moments(ended, 3, 0.0) == ended  # their tokens came before the window

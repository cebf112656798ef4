"""Estimated output length while some outputs are still running, compared with simulated ones."""

from collections.abc import Callable

import numpy as np
import pytest

from baton.deployment.autoscaling.moments import FIRST_GUESS, Moments, answer_moments
from baton.router.policy import estimates

RATE, TOKENS_PER_S = 20.0, 40.0  # requests, and tokens of each
LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "exponential": lambda random, num: random.exponential(400.0, num),
    "log-normal": lambda random, num: random.lognormal(np.log(400.0) - 0.5, 1.0, num),
    "alike": lambda _, num: np.full(num, 400.0),
}


def seen(lengths: np.ndarray, window: tuple[float, float], seed: int) -> tuple[Moments, int, float]:
    """Return the lengths of outputs that ended in the window, and all its tokens; outputs begin at random times."""
    begins_s = np.random.default_rng(seed).uniform(0.0, len(lengths) / RATE, len(lengths))
    ends_s = begins_s + lengths / TOKENS_PER_S
    since_s, now_s = window
    ended = lengths[(ends_s >= since_s) & (ends_s < now_s)]
    lived_s = np.clip(np.minimum(ends_s, now_s) - np.maximum(begins_s, since_s), 0.0, None)
    return Moments.of(ended), len(ended), float(lived_s.sum() * TOKENS_PER_S)


@pytest.mark.parametrize("name", LENGTHS)
def test_mean_length_is_exact_once_as_many_outputs_end_as_begin(name: str) -> None:
    lengths = LENGTHS[name](np.random.default_rng(1), 4000)
    ended, num_ended, num_generated = seen(lengths, (100.0, 160.0), 2)
    found = answer_moments(ended, num_ended, num_generated)
    assert found.mean == pytest.approx(400.0, rel=0.1)
    assert found.cv2 == pytest.approx(ended.cv2)


def test_mean_length_is_not_that_of_the_first_outputs_to_end() -> None:
    """Six seconds after the first request no output has more than 240 tokens."""
    ratios = []
    for seed in range(20):
        ended, num_ended, num_generated = seen(LENGTHS["exponential"](np.random.default_rng(seed), 1000), (0, 6), seed)
        assert ended.mean < 120
        ratios.append(answer_moments(ended, num_ended, num_generated).mean / 400)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)
    assert 0.4 < min(ratios) < max(ratios) < 1.8  # of about twenty ended outputs


def test_mean_length_of_a_few_ended_outputs_is_not_too_long() -> None:
    """Two seconds after the first request four outputs have ended, or two or eight by chance."""
    found = []
    for seed in range(300):
        lengths = LENGTHS["exponential"](np.random.default_rng(seed), 60)
        ended, num_ended, num_generated = seen(lengths, (0, 2), 1000 + seed)
        found.append(answer_moments(ended, num_ended, num_generated).mean / 400 if num_ended else 1.0)
    assert np.mean(found) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("length", [5.0, 8000.0])
def test_mean_length_in_a_steady_state_is_exact_however_few_outputs_end(length: float) -> None:
    ended = Moments(length, 2 * length * length)
    assert [answer_moments(ended, num, num * length).mean for num in (1, 2, 10)] == pytest.approx([length] * 3)


def test_estimated_length_is_at_most_the_requested_maximum() -> None:
    ended, num_ended, num_generated = seen(LENGTHS["alike"](np.random.default_rng(0), 1000), (0.0, 10.5), 0)
    assert answer_moments(ended, num_ended, num_generated).mean > 2000  # hardly any output has ended
    assert answer_moments(ended, num_ended, num_generated, 400.0).mean == 400.0


def test_default_length_until_an_output_has_ended() -> None:
    assert answer_moments(Moments(), 0, 300.0) == Moments(300.0, 180_000.0)
    assert answer_moments(Moments(), 0, 300.0, 100.0).mean == 100.0
    assert FIRST_GUESS == estimates.LENGTH_FIRST_GUESS
    assert answer_moments(Moments(), 0, 0.0).mean == answer_moments(Moments(), 0, 10.0).mean == FIRST_GUESS


def test_without_token_counts_the_ended_outputs_give_the_mean() -> None:
    ended = Moments(7.0, 60.0)
    assert answer_moments(ended, 3, None) == ended
    assert answer_moments(ended, 3, 0.0) == ended  # their tokens were generated before the window

"""Prices of fetches: a store is used while it pays, and left while it does not."""

import pytest

from baton.worker.kv.tier_price import (
    GRACE_S,
    LONGEST_LOOKUP_S,
    PROBE_S,
    UNKNOWN_LOOKUP_S,
    UNKNOWN_S,
    FetchSpeed,
    is_slow,
    lookup_patience_s,
)


def test_an_unknown_store_is_tried_and_a_slow_one_left_until_the_next_probe() -> None:
    speed = FetchSpeed()
    assert speed.pays(100, compute_s=0.001, now_s=1.0)
    speed.note([0.5, 0.1, 0.1], now_s=1.0)
    assert speed.fetch_s(11) == pytest.approx(1.5)
    assert speed.pays(11, compute_s=1.6, now_s=2.0)
    assert not speed.pays(11, compute_s=1.4, now_s=2.0)
    assert speed.pays(11, compute_s=0, now_s=2.0)  # nothing is known of computing
    assert speed.pays(11, compute_s=1.4, now_s=1.0 + PROBE_S + 0.1)


def test_a_lookup_takes_at_most_a_tenth_of_the_time_to_compute() -> None:
    assert lookup_patience_s(2.0) == pytest.approx(0.2)
    assert lookup_patience_s(1000.0) == LONGEST_LOOKUP_S
    assert lookup_patience_s(0.0) == UNKNOWN_LOOKUP_S  # not known


def test_speeds_follow_the_newest_fetches() -> None:
    speed = FetchSpeed()
    speed.note([0.1] * 10, now_s=1.0)
    for turn in range(20):
        speed.note([0.01] * 10, now_s=2.0 + turn)
    assert speed.fetch_s(10) == pytest.approx(0.1, rel=0.01)
    speed.note([], now_s=99.0)
    assert speed.noted_at_s == 21.0


@pytest.mark.parametrize(
    ("num_read", "elapsed_s", "compute_s", "expected"),
    [
        (0, GRACE_S / 2, 0.001, False),
        (0, GRACE_S * 2, 0.1, True),
        (0, GRACE_S * 2, 1.0, False),
        (5, 0.49, 1.0, False),
        (5, 0.51, 1.0, True),
        (0, UNKNOWN_S * 0.9, 0.0, False),
        (3, UNKNOWN_S * 1.1, 0.0, True),
    ],
)
def test_a_fetch_ends_when_computing_is_faster(
    num_read: int, elapsed_s: float, compute_s: float, expected: bool
) -> None:
    assert is_slow(num_read, 10, elapsed_s, compute_s) is expected

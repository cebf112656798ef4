"""The token bucket of a rate."""

import pytest

from baton.router.auth.key_meter import RateBucket


def test_a_bucket_starts_full_and_holds_a_minutes_worth() -> None:
    bucket = RateBucket(60, now_s=100.0)
    assert bucket.level(100.0) == 60
    assert bucket.level(1000.0) == 60
    assert (bucket.wait_s(1000.0), bucket.full_s(1000.0)) == (0, 0)


def test_it_is_refilled_steadily() -> None:
    bucket = RateBucket(60, now_s=0.0)
    bucket.take(60, 0.0)
    assert bucket.wait_s(0.0) == 1.0
    assert bucket.level(0.5) == 0.5
    assert bucket.wait_s(0.5) == 0.5
    assert bucket.wait_s(1.0) == 0
    assert bucket.full_s(1.0) == 59.0


def test_the_level_may_become_negative() -> None:
    bucket = RateBucket(120, now_s=0.0)
    bucket.take(360, 0.0)
    assert bucket.level(0.0) == -240
    assert bucket.wait_s(0.0) == pytest.approx(120.5)
    assert bucket.level(120.0) == 0
    assert bucket.wait_s(120.5) == 0


def test_a_stopped_clock_refills_nothing() -> None:
    bucket = RateBucket(60, now_s=5.0)
    bucket.take(1, 5.0)
    assert [bucket.level(now_s) for now_s in (5.0, 4.0, 5.0)] == [59, 59, 59]

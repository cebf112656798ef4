"""The measured rate at which completions end."""

import pytest

from baton.router.admission.inflight_limit import ServiceRate


def test_nothing_is_known_at_first() -> None:
    rate = ServiceRate()
    assert rate.per_s(0.0, 5) is None
    rate.busy(1.0)
    assert rate.per_s(2.0, 5) is None


def test_without_a_queue_the_rate_follows_littles_law() -> None:
    rate = ServiceRate()
    for second in range(100):
        rate.ended(float(second), 1, held_s=2.0)  # one a second: the arrivals' rate, and not the workers'
    assert rate.per_s(100.0, 64) == pytest.approx(32.0)
    assert rate.per_s(200.0, 8) == pytest.approx(4.0)


def busy_second(rate: ServiceRate, start_s: float, num_ended: int, held_s: float = 2.0) -> None:
    for place in range(num_ended):
        rate.ended(start_s + (place + 1) / num_ended, 1, held_s)


def test_while_requests_wait_the_ends_are_counted() -> None:
    rate = ServiceRate()
    rate.busy(0.0)
    for second in range(60):
        busy_second(rate, float(second), 20)
    assert rate.per_s(60.0, 40) == pytest.approx(20.0, rel=0.05)
    for second in range(60, 120):
        busy_second(rate, float(second), 5)
    assert rate.per_s(120.0, 10) == pytest.approx(5.0, rel=0.05)


def test_time_without_a_queue_does_not_count() -> None:
    rate = ServiceRate()
    rate.busy(0.0)
    for second in range(60):
        busy_second(rate, float(second), 20)
    rate.idle(60.0)
    for second in range(60, 600):
        busy_second(rate, float(second), 1)
    rate.busy(600.0)
    assert rate.per_s(600.0, 40) == pytest.approx(20.0, rel=0.05)


def test_stopped_workers_have_a_falling_rate() -> None:
    rate = ServiceRate()
    rate.busy(0.0)
    for second in range(60):
        busy_second(rate, float(second), 20)
    seen = [rate.per_s(at_s, 40) or 0.0 for at_s in (60.0, 70.0, 90.0, 150.0)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.15 * seen[0]

"""The usage of one key, compared with its limits."""

import pytest

from baton.router.auth.api_key import ApiKey
from baton.router.auth.key_meter import KeyMeter, duration
from baton.router.errors import FieldError, KeyLimitReached


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def key(**limits: int) -> ApiKey:
    return ApiKey(name="a", digest=b"", **limits)  # type: ignore[arg-type]  # limits are numbers


def refused(meter: KeyMeter) -> tuple[str, int]:
    with pytest.raises(KeyLimitReached) as caught:
        meter.begin()
    return caught.value.kind, caught.value.retry_after_s


def test_requests() -> None:
    clock = Clock()
    meter = KeyMeter(key(requests_per_minute=2), clock)
    meter.begin()
    meter.begin()
    assert refused(meter) == ("requests", 30)
    clock.now_s += 29.0
    assert refused(meter) == ("requests", 1)
    clock.now_s += 1.0
    meter.begin()
    assert refused(meter) == ("requests", 30)


def test_tokens_are_overdrawn_by_the_last_request_and_no_other() -> None:
    clock = Clock()
    meter = KeyMeter(key(tokens_per_minute=60), clock)
    meter.begin()
    meter.charge(59)
    meter.begin()
    meter.charge(601)
    assert refused(meter) == ("tokens", 601)
    clock.now_s += 601
    meter.begin()


def test_a_rejected_request_holds_nothing() -> None:
    clock = Clock()
    meter = KeyMeter(key(requests_per_minute=60, tokens_per_minute=60), clock)
    meter.charge(61)
    for _ in range(100):
        assert refused(meter) == ("tokens", 2)
    assert meter.headers()["x-ratelimit-remaining-requests"] == "60"


def test_completions_in_flight() -> None:
    meter = KeyMeter(key(max_inflight=3))
    meter.enter(2)
    with pytest.raises(KeyLimitReached, match="2 completions in flight, and its limit is 3"):
        meter.enter(2)
    meter.enter(1)
    meter.leave(2)
    meter.enter(2)
    with pytest.raises(FieldError, match="has 4 completions, over the API key's limit of 3") as caught:
        meter.enter(4)
    assert caught.value.field == "n"


def test_headers_have_the_remaining_rate_in_openais_format() -> None:
    clock = Clock()
    meter = KeyMeter(key(requests_per_minute=600, tokens_per_minute=6000), clock)
    meter.begin()
    meter.charge(6600)
    assert meter.headers() == {
        "x-ratelimit-limit-requests": "600", "x-ratelimit-remaining-requests": "599",
        "x-ratelimit-reset-requests": "100ms", "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m6s",
    }  # fmt: skip
    assert dict(KeyMeter(key(max_inflight=1)).headers()) == {}


def test_counts_survive_a_change_of_limits() -> None:
    clock = Clock()
    meter = KeyMeter(key(requests_per_minute=1, tokens_per_minute=10, max_inflight=2), clock)
    meter.begin()
    meter.enter(1)
    meter.renew(key(requests_per_minute=1, tokens_per_minute=20, max_inflight=1))
    assert refused(meter) == ("requests", 60)
    assert meter.headers()["x-ratelimit-remaining-tokens"] == "20"
    with pytest.raises(KeyLimitReached):
        meter.enter(1)
    meter.renew(key())
    meter.begin()
    meter.enter(100)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0111, "12ms"), (1, "1s"), (7.651, "7.66s"), (59.9, "59.9s"), (360, "6m0s"), (3723.0, "1h2m3s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text

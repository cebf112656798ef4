"""Figures of the last minutes."""

import pytest
from prometheus_client import CollectorRegistry

from baton.router.admission.metrics import AdmissionMetrics, Refusal
from baton.router.errors import FieldError, NoWorker, Overloaded
from baton.router.metrics.metrics import CompletionMeter, RouterMetrics
from baton.router.metrics.recent import NUM_SPANS, SPAN_S, RecentFigures
from baton.router.policy.targets import Targets


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_figures_of_a_minute_and_their_end() -> None:
    clock = Clock()
    recent = RecentFigures(Targets(ttft_s=1.0, tpot_s=0.05), clock)
    clock.now_s += 60
    for ttft_s, tpot_s in ((0.5, 0.02), (0.5, 0.02), (3.0, 0.02), (0.5, 0.2)):
        recent.planned("remote_with_source" if ttft_s > 1 else "local")
        recent.prompt_done(100, 25)
        recent.first_token(ttft_s)
        recent.generated(30)
        recent.ended(ttft_s, tpot_s)
    total = recent.total()
    assert total.completions_per_s == pytest.approx(4 / 55, abs=0.01)  # the current span has just begun
    assert total.tokens_per_s == pytest.approx(120 / 55, abs=0.1)
    assert total.ttft_p50_s == pytest.approx(0.5, rel=0.06)
    assert total.ttft_p95_s == pytest.approx(3.0, rel=0.06)
    assert total.tpot_p95_s == pytest.approx(0.2, rel=0.06)
    assert (total.hit_rate, total.on_target) == (0.25, 0.5)
    assert (total.local, total.remote) == (3, 1)
    clock.now_s += 61
    later = recent.total()
    assert (later.completions_per_s, later.ttft_p50_s, later.hit_rate, later.on_target) == (0.0, None, None, None)


def test_a_series_has_every_span_also_those_without_requests() -> None:
    clock = Clock()
    recent = RecentFigures(None, clock)
    for _ in range(3):
        recent.ended(0.1, None)
        clock.now_s += 3 * SPAN_S
    rates = [each.completions_per_s for each in recent.series()]
    assert rates == [1 / SPAN_S, 0, 0] * 3
    assert rates == [each.completions_per_s for each in recent.series()]
    clock.now_s += 10 * NUM_SPANS * SPAN_S
    series = recent.series()
    assert len(series) == NUM_SPANS
    assert not any(each.completions_per_s for each in series)
    assert series[0].on_target is None  # no targets


def test_errors_in_a_row_are_one_line_and_those_of_clients_are_not_counted() -> None:
    recent = RecentFigures(None, Clock())
    for number in range(3):
        recent.failed(f"r{number}", NoWorker("no decode worker is ready"))
    recent.failed("r3", FieldError("prompt", "x" * 5000))
    recent.failed("r4", Overloaded("full", 1))
    recent.refused("queue_full", 429)
    assert [(each.status, each.num, each.request_id) for each in recent.errors] == [
        (503, 3, "r2"), (400, 1, "r3"), (429, 1, "r4"), (429, 1, ""),
    ]  # fmt: skip
    assert max(len(each.text) for each in recent.errors) < 300
    assert recent.total().errors == 5
    for number in range(100):
        recent.failed("r", NoWorker(str(number)))
    assert len(recent.errors) == recent.errors.maxlen


def test_tokens_count_in_the_span_in_which_they_arrive() -> None:
    clock = Clock()
    recent = RecentFigures(None, clock)
    for _ in range(600):  # one long stream, and nobody looks
        clock.now_s += 1
        recent.generated(10)
    assert recent.total().tokens_per_s == pytest.approx(10, rel=0.1)
    assert {each.tokens_per_s for each in recent.series()} == {10.0}


def test_a_series_ends_with_a_whole_span() -> None:
    clock = Clock()
    recent = RecentFigures(None, clock)
    for second in range(60):
        recent.generated(10)
        recent.planned("local")
        clock.now_s += 1
        last = recent.series()[-1]
        if second >= 2 * SPAN_S:
            assert (last.tokens_per_s, last.local) == (10.0, 5)


def test_figures_that_are_read_at_the_end_of_a_span() -> None:
    times = iter([1000.0, 1004.9, *[1005.0] * 10])
    recent = RecentFigures(None, lambda: next(times))
    assert len(recent.series()) == 1


def test_a_completion_that_failed_missed_its_targets_however_quick_it_was() -> None:
    metrics = RouterMetrics("m", 60, Targets(ttft_s=100.0, tpot_s=100.0))
    for reason in ("stop", "error"):
        meter = CompletionMeter(metrics)
        meter.tokens(1)
        meter.tokens(1)
        meter.ended(reason)
    assert metrics.recent.total().on_target == 0.5


def test_refusals_have_the_status_that_clients_get() -> None:
    recent = RecentFigures(None, Clock())
    metrics = AdmissionMetrics(CollectorRegistry(), "m", note_refusal=recent.refused)
    for reason in Refusal:
        metrics.refused(reason)
    assert [each.status for each in recent.errors] == [503, 429, 429, 429, 429, 504, 503]


def test_an_internal_error_is_listed_without_its_details() -> None:
    recent = RecentFigures(None, Clock())
    recent.failed("r0", RuntimeError("a part of a prompt"))
    assert (recent.errors[0].status, "prompt" in recent.errors[0].text) == (500, False)


def test_the_meter_of_a_completion_feeds_the_figures() -> None:
    metrics = RouterMetrics("m", 60, Targets(ttft_s=100.0, tpot_s=100.0))
    metrics.planned("remote")
    metrics.prompt_done(10, 5)
    meter = CompletionMeter(metrics)
    meter.tokens(1)
    meter.tokens(4)
    meter.ended("stop")
    CompletionMeter(metrics).ended("abort")  # without a token: nothing to judge
    total = metrics.recent.total()
    assert (total.remote, total.hit_rate, total.on_target) == (1, 0.5, 1.0)
    assert total.ttft_p50_s is not None
    assert total.tpot_p50_s is not None
    assert (total.completions_per_s, total.tokens_per_s) == (2.0, 5.0)

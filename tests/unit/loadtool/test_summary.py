"""Summary figures of a run."""

import random
from dataclasses import asdict

import numpy as np
import pytest

from baton.loadtool.arrivals import MaxConcurrency
from baton.loadtool.concurrency import Concurrency
from baton.loadtool.path_summary import PathSummary
from baton.loadtool.record import ServedPath
from baton.loadtool.slo import Slo
from baton.loadtool.summary import distribution, summarise
from tests.unit.loadtool.measured_runs import completed, failed, run_of


def test_percentiles_equal_numpys() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10, 101, 1000):
        seconds = rng.exponential(size=count)
        found = distribution(seconds)
        assert found is not None
        expected = np.percentile(seconds * 1000, (0, 50, 90, 95, 99, 100))
        assert [found.min, found.p50, found.p90, found.p95, found.p99, found.max] == pytest.approx(expected)
        assert (found.count, found.mean, found.std) == (
            count,
            *map(pytest.approx, (1000 * seconds.mean(), 1000 * seconds.std())),
        )
    assert distribution([]) is None


def test_mean_concurrency_equals_a_direct_count() -> None:
    rng = random.Random(1)
    for _ in range(30):
        spans = [
            (begin, begin + rng.randrange(5)) for begin in (rng.randrange(20) for _ in range(rng.randrange(1, 15)))
        ]
        concurrency = Concurrency([float(begin) for begin, _ in spans], [float(end) for _, end in spans])
        counts = [
            sum(begin <= at < end for begin, end in spans) for at in range(30)
        ]  # from each integer time to the next
        assert concurrency.highest >= max(counts)
        for begin, end in ((0, 30), (3, 9), (7, 8)):
            assert concurrency.mean(begin, end) == pytest.approx(np.mean(counts[begin:end]))


def test_rates_times_and_failures_of_a_run() -> None:
    records = [
        completed(1.0, (0.1, 0.2, 0.4), due_s=0.98),
        completed(2.0, (0.3, 0.5, 0.9, 1.1), due_s=2.0, num_prompt_tokens=30, num_cached_tokens=16),
        completed(2.5, (0.2,), due_s=2.5),
        failed(429, "status 429", "too many", 3.0),
        failed(429, "status 429", "still too many", 3.1),
        failed(None, "timed out", sent_s=1.0, took_s=4.0),
    ]
    found = summarise(run_of(*records), Slo(ttft_s=0.25))
    assert (found.num_sent, found.num_completed, found.num_rejected, found.num_failed) == (6, 3, 2, 1)
    assert found.duration_s == 4.0
    assert found.requests_per_s == 3 / 4
    assert (found.num_input_tokens, found.num_output_tokens) == (50, 8)
    assert found.output_tokens_per_s == 8 / 4
    assert found.offered_per_s == pytest.approx(6 / 3.1)
    assert found.num_cached_tokens == 16
    assert found.ttft_ms is not None
    assert (found.ttft_ms.count, found.ttft_ms.p50) == (3, pytest.approx(200))
    assert found.tpot_ms is not None
    assert found.tpot_ms.max == pytest.approx(1000 * 0.8 / 3)
    assert found.itl_ms is not None
    assert (found.itl_ms.count, found.itl_ms.max) == (5, pytest.approx(400))
    assert found.lag_ms is not None
    assert found.lag_ms.max == pytest.approx(20)
    assert {kind: asdict(each) for kind, each in found.failures.items()} == {
        "status 429": {"count": 2, "example": "too many"},
        "timed out": {"count": 1, "example": "why"},
    }
    assert found.goodput is not None
    assert (found.goodput.num_good, found.goodput.share, found.goodput.per_s) == (2, 2 / 6, 2 / 4)
    assert found.client_busy_share == 0.1
    assert found.warnings == []


def test_a_closed_loop_has_no_lag() -> None:
    found = summarise(run_of(completed(), arrivals=MaxConcurrency(1)), None)
    assert (found.label, found.lag_ms, found.offered_per_s, found.goodput) == ("1 concurrent", None, None, None)


def test_a_run_without_requests_has_figures() -> None:
    for records in ((), (failed(503, "status 503"),)):
        found = summarise(run_of(*records), Slo(ttft_s=1.0))
        assert (found.num_completed, found.ttft_ms, found.requests_per_s) == (0, None, 0.0)


def test_doubtful_runs_have_warnings() -> None:
    late = completed(due_s=0.0, sent_s=1.0)
    uncounted = completed(due_s=0.0)
    uncounted.is_counted = False
    short = completed(due_s=0.0)
    short.num_asked_tokens = 9
    warnings = " ".join(summarise(run_of(late, uncounted, short, is_whole=False), None).warnings)
    for doubt in ("were sent late", "1 responses had no token count", "1 outputs were shorter", "interrupted"):
        assert doubt in warnings


def test_paths_are_counted() -> None:
    remote, local = ServedPath("p0", "d0", "tcp", 0, 40), ServedPath("d1", "d1", "", 16, 0)
    found = summarise(run_of(completed(path=remote), completed(path=local), completed(path=remote), completed()), None)
    assert found.paths == PathSummary(2, 1, 80, {"tcp": 2}, {"d1": 1, "p0": 2}, {"d0": 2, "d1": 1})
    assert summarise(run_of(completed()), None).paths is None

"""Counts and distributions as Prometheus reads them."""

from prometheus_client import CollectorRegistry, Histogram

from baton.router.metrics.metrics import ChoiceMeter, RouterMetrics
from baton.router.metrics.tally import TallySeries
from tests.unit.router.series import read_series


def test_a_distribution_reads_as_the_librarys_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    series = TallySeries("m")
    ours.register(series)
    distribution = series.distribution("test:seconds", "Some seconds.", (0.1, 1, 10))
    labelled = Histogram("test:seconds", "Some seconds.", ["model_name"], buckets=(0.1, 1, 10), registry=theirs)
    for value, times in ((0.05, 1), (0.1, 2), (0.5, 3), (10, 1), (11, 2)):
        distribution.observe(value, times)
        for _ in range(times):
            labelled.labels("m").observe(value)
    expected = {key: value for key, value in read_series(theirs).items() if "_created" not in key}
    assert read_series(ours) == expected


def test_counts_have_their_labels() -> None:
    registry = CollectorRegistry()
    series = TallySeries("m")
    registry.register(series)
    series.count("test:tokens", "Tokens.").inc(5)
    by_plan = series.counts_by("test:plans", "Plans.", "plan")
    for plan in ("local", "remote", "local"):
        by_plan.inc(plan)
    assert read_series(registry) == {
        'test:tokens_total{model_name="m"}': 5,
        'test:plans_total{model_name="m",plan="local"}': 2,
        'test:plans_total{model_name="m",plan="remote"}': 1,
    }


def test_tokens_that_come_together_count_one_by_one() -> None:
    metrics = RouterMetrics("m", 60)
    meter = ChoiceMeter(metrics)
    for num_tokens in (1, 3, 0, 4):
        meter.tokens(num_tokens)
    meter.ended("stop")
    found = read_series(metrics.registry)
    assert found['baton:generation_tokens_total{model_name="m"}'] == 8
    assert found['baton:inter_token_latency_seconds_count{model_name="m"}'] == 7
    assert found['baton:time_to_first_token_seconds_count{model_name="m"}'] == 1
    assert found['baton:request_success_total{finished_reason="stop",model_name="m"}'] == 1
    assert found['baton:request_generation_tokens_bucket{le="10.0",model_name="m"}'] == 1

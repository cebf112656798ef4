"""The router's own series."""

from baton.router.metrics.metrics import CompletionMeter, RouterMetrics
from tests.unit.router.series import read_series


def test_tokens_that_come_together_count_one_by_one() -> None:
    metrics = RouterMetrics("m", 60)
    meter = CompletionMeter(metrics)
    for num_tokens in (1, 3, 0, 4):
        meter.tokens(num_tokens)
    meter.ended("stop")
    found = read_series(metrics.registry)
    assert found['baton:generation_tokens_total{model_name="m"}'] == 8
    assert found['baton:inter_token_latency_seconds_count{model_name="m"}'] == 7
    assert found['baton:time_to_first_token_seconds_count{model_name="m"}'] == 1
    assert found['baton:request_success_total{finished_reason="stop",model_name="m"}'] == 1
    assert found['baton:request_generation_tokens_bucket{le="10.0",model_name="m"}'] == 1


def test_counts_by_a_label_begin_with_their_first_value() -> None:
    metrics = RouterMetrics("m", 60)
    for plan in ("local", "remote", "local"):
        metrics.planned(plan)
    found = {key: value for key, value in read_series(metrics.registry).items() if "by_plan" in key}
    assert found == {
        'baton:requests_by_plan_total{model_name="m",plan="local"}': 2,
        'baton:requests_by_plan_total{model_name="m",plan="remote"}': 1,
    }


def test_no_series_of_creation_times() -> None:
    metrics = RouterMetrics("m", 60)
    metrics.planned("local")
    assert not [key for key in read_series(metrics.registry) if "_created" in key]

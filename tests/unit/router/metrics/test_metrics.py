"""The router's own series."""

from baton.router.metrics.metrics import CompletionMeter, RouterMetrics
from baton.router.parsing.base import CallArguments, CallEnd, CallStart, Content
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


def test_calls_are_counted_by_the_end_of_their_completion() -> None:
    metrics = RouterMetrics("m", 60)
    broken = [CallStart(0, "f"), CallArguments(0, "{"), CallEnd(0, is_valid_json=False)]
    for reason, parts in (
        ("tool_calls", [CallStart(0, "f"), CallEnd(0, is_valid_json=True), CallStart(1, "g"), CallEnd(1, True)]),
        ("length", broken),
        ("stop", [Content("no call")]),
    ):
        meter = CompletionMeter(metrics)
        for part in parts:
            meter.parts([part])
        meter.ended(reason)
    found = read_series(metrics.registry)
    assert {key: value for key, value in found.items() if "tool_call" in key} == {
        'baton:tool_calls_total{finished_reason="tool_calls",model_name="m"}': 2,
        'baton:tool_calls_total{finished_reason="length",model_name="m"}': 1,
        'baton:tool_call_invalid_arguments_total{model_name="m"}': 1,
    }
    assert found['baton:request_success_total{finished_reason="stop",model_name="m"}'] == 2

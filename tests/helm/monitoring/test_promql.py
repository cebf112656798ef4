"""The check of expressions refuses what would be an empty panel, or an alert that never fires."""

import pytest

from tests.helm.monitoring.promql import Wrong, annotation_labels, check, legend_labels, read_page, selectors

PAGE = read_page("""
# TYPE baton:workers gauge
baton:workers{model_name="m",role="decode",state="ready"} 1
baton:workers{model_name="m",role="prefill",state="ready"} 1
# TYPE baton:handovers counter
baton:handovers_total{model_name="m",worker="decode-0"} 1
# TYPE baton:worker_info gauge
baton:worker_info{model_name="m",worker="decode-0",role="decode"} 1
# TYPE baton:wait_seconds histogram
baton:wait_seconds_bucket{model_name="m",le="1.0"} 1
baton:wait_seconds_bucket{model_name="m",le="+Inf"} 1
baton:wait_seconds_sum{model_name="m"} 1
baton:wait_seconds_count{model_name="m"} 1
""")


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ('max by (role, state) (baton:workers{namespace="a",role=~"decode|prefill"}) > 0', {"role", "state"}),
        ("histogram_quantile(0.9, sum by (le) (rate(baton:wait_seconds_bucket[5m])))", set()),
        ('1 - sum(rate(baton:wait_seconds_bucket{le="1.0"}[5m])) / sum(rate(baton:wait_seconds_count[5m]))', set()),
        (
            "max by (worker) (baton:handovers_total) * on (worker) group_left (role) "
            "max by (worker, role) (baton:worker_info)",
            {"worker", "role"},
        ),
        ("deriv(sum(baton:workers)[10m:1m]) > 2 * (1 - 0.9)", set()),
        ('sum(up{service="r"}) or vector(0)', set()),
    ],
)
def test_existing_series_and_labels_pass(expression: str, labels: set[str]) -> None:
    assert check(expression, PAGE) == labels


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("sum(baton:handovers)", "no series baton:handovers"),
        ('baton:workers{kind="decode"}', "no label kind"),
        ('baton:workers{role="encode"}', "role is one of"),
        ('baton:workers{role=~"decode|encode"}', "role is one of"),
        ('baton:wait_seconds_bucket{le="1"}', "le is one of"),
        ("sum by (worker) (baton:workers)", "no label worker"),
        ("histogram_quantile(0.9, sum by (model_name) (baton:wait_seconds_bucket))", "no label le"),
        ("sum by (role) (baton:workers) / sum by (worker) (baton:handovers_total)", "never match"),
        ("baton:handovers_total * on (role) group_left () baton:worker_info", "no label role"),
        ("sum by (role) (baton:workers) / ignoring (role) sum by (worker) (baton:handovers_total)", "never match"),
    ],
)
def test_missing_series_and_labels_are_named(expression: str, error: str) -> None:
    with pytest.raises(Wrong, match=error):
        check(expression, PAGE)


def test_invalid_promql_is_refused() -> None:
    with pytest.raises(ValueError, match="parenthesis"):
        check("sum(baton:workers", PAGE)


def test_every_selector_is_found() -> None:
    found = selectors("(sum(rate(a[5m])) / -b) > 1 and deriv(sum(c)[5m:1m]) > 0 or histogram_quantile(0.5, d)")
    assert [each.name for each in found] == ["a", "b", "c", "d"]


def test_labels_in_templates_are_found() -> None:
    assert legend_labels("{{role}} {{ state }}") == {"role", "state"}
    assert annotation_labels("{{ $labels.worker }} has {{ $value | humanize }}") == {"worker"}

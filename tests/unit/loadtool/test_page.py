"""The HTML page: well-formed, self-contained and complete."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from baton.loadtool.arrivals import Arrivals, MaxConcurrency, RequestRate, TraceTimes
from baton.loadtool.load_report import LoadReport, measured
from baton.loadtool.page.charts import distribution_charts, sweep_charts, timeline_charts
from baton.loadtool.page.page import render_page
from baton.loadtool.page.ticks import linear_axis, log_axis, short, tight_axis
from baton.loadtool.slo import Slo
from baton.loadtool.target import Target
from tests.unit.loadtool.measured_runs import completed, failed, run_of

VOID = frozenset({"meta", "br", "link", "img"})


class Balance(HTMLParser):
    """Parser that checks that every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report_of(*loads: Arrivals, model: str = "model", empty: bool = False) -> LoadReport:
    records = [completed(number / 10, (0.1 + number / 100, 0.2 + number / 50, 0.9)) for number in range(50)]
    runs = [
        run_of(*([] if empty else records), failed(429, "status 429", "<too> many"), arrivals=load) for load in loads
    ]
    return LoadReport(
        target=Target(base_url="http://x", model=model),
        dataset="synthetic",
        settings={"num_prompts": 50},
        when="2026-01-01T00:00:00+00:00",
        runs=[measured(run, Slo(ttft_s=0.3)) for run in runs],
    )


def checked(page: str) -> Balance:
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(svg)
        numbers = re.findall(r"-?\d+\.?\d*", " ".join(path.get("d", "") for path in root.iter("path")))
        assert all(-1 <= float(number) <= 401 for number in numbers)
    assert not re.findall(r"<script|src=|@import|url\(|href=", page)  # the page fetches nothing
    return balance


def test_a_sweep_has_curves_distributions_and_a_timeline_per_run() -> None:
    report = report_of(RequestRate(1.0), RequestRate(2.0), RequestRate(4.0))
    page = render_page(report)
    assert checked(page).seen.count("svg") == 4 + 4 + 3 * 2
    assert "<script" not in page
    assert "&lt;too&gt; many" in page
    assert "within the SLOs" in page
    assert "4 req/s" in page


def test_one_run_has_no_sweep_charts() -> None:
    for load in (MaxConcurrency(4), TraceTimes(), RequestRate(float("inf"))):
        report = report_of(load)
        assert checked(render_page(report)).seen.count("svg") == 4 + 2
        assert sweep_charts(report.runs) == []


def test_a_load_without_a_response_has_a_page() -> None:
    report = report_of(MaxConcurrency(1), MaxConcurrency(2), empty=True)
    assert "2 concurrent" in render_page(report)
    checked(render_page(report))
    assert distribution_charts(report.runs) == []
    assert timeline_charts(report.runs[0]) == []


def test_names_are_escaped() -> None:
    page = render_page(report_of(MaxConcurrency(1), model='<b>"x"</b>&'))
    assert "<b>" not in page
    checked(page)


@pytest.mark.parametrize("high", [1e-4, 0.7, 1, 3, 9.99, 10, 123, 5e6])
def test_linear_axes_end_at_a_round_number_above(high: float) -> None:
    axis = linear_axis(high)
    assert axis.low == 0
    assert high <= axis.high * 1.001 <= high * 2.6
    assert 3 <= len(axis.ticks) <= 7
    assert axis.place(axis.high) == 1
    tight = tight_axis(high)
    assert tight.place(high) == 1
    assert high * 0.5 < tight.ticks[-1] <= high * 1.001


@pytest.mark.parametrize(("low", "high"), [(1, 1), (0.5, 3), (7, 9), (1, 1e4), (3e-3, 5e5), (99.9, 100.1)])
def test_log_axes_contain_both_ends(low: float, high: float) -> None:
    axis = log_axis(low, high)
    assert axis.low <= low * 1.001
    assert axis.high >= high * 0.999
    assert 2 <= len(axis.ticks) <= 12
    assert axis.place(axis.low) == 0
    assert axis.place(axis.high) == pytest.approx(1)
    assert 0 <= axis.place(low) <= axis.place(high) <= 1


def test_axis_labels_are_short() -> None:
    assert list(map(short, (0.0, 0.25, 20.0, 1500.0, 3e6))) == ["0", "0.25", "20", "1.5k", "3M"]

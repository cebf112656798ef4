"""Terminal output during a load and after it."""

import io

from rich.console import Console

from baton.loadtool.arrivals import RequestRate
from baton.loadtool.progress import ProgressBar
from baton.loadtool.record import ServedPath
from baton.loadtool.slo import Slo
from baton.loadtool.summary import summarise
from baton.loadtool.terminal import number, show_run, show_sweep
from tests.unit.loadtool.measured_runs import completed, failed, run_of

PATH = ServedPath("p0", "d0", "tcp", 4, 6)


def console(output: io.StringIO, *, terminal: bool = False) -> Console:
    return Console(file=output, force_terminal=terminal, width=120, highlight=False)


def test_the_bar_shows_requests_in_flight_and_failures() -> None:
    output = io.StringIO()
    with ProgressBar(console(output, terminal=True), "2 at once", 3) as bar:
        for _ in range(3):
            bar.sent()
        bar.ended(completed())
        bar.ended(failed(503, "status 503"))
        bar._progress.refresh()
    assert "2 at once" in output.getvalue()
    assert "2 ended, 1 in flight, 1 failed" in output.getvalue()


def test_without_a_terminal_there_is_no_bar() -> None:
    output = io.StringIO()
    with ProgressBar(console(output), "2 at once", None) as bar:
        bar.sent()
        bar.ended(completed())
    assert output.getvalue() == ""


def test_a_runs_output_has_times_failures_and_paths() -> None:
    output = io.StringIO()
    records = [completed(due_s=0.0, num_cached_tokens=4, path=PATH), failed(429, "status 429", "[too] many")]
    show_run(summarise(run_of(*records), Slo(ttft_s=0.2)), console(output))
    lines = output.getvalue().splitlines()
    (ttft,) = [line for line in lines if line.startswith("TTFT")]
    assert ttft.split() == ["TTFT", *["100"] * 6]
    assert "requests  1 answered, 1 rejected (429), 0 failed in 0.4 s" in lines
    assert "1 x status 429: [too] many" in lines
    assert "cached    40.0% of 10 input tokens" in lines
    assert "path      1 prefilled elsewhere (1 over tcp), 0 locally; 6 tokens handed over" in lines
    assert any("50.0% within ttft=200ms" in line for line in lines)


def test_a_sweep_has_a_line_for_each_load() -> None:
    output = io.StringIO()
    runs = [
        run_of(completed(), arrivals=RequestRate(2.0)),
        run_of(failed(503, "status 503"), arrivals=RequestRate(4.0)),
    ]
    show_sweep([summarise(run, None) for run in runs], console(output))
    _, head, first, second = output.getvalue().splitlines()
    assert "TTFT p50" in head
    assert first.split()[:4] == ["2", "req/s", "1", "0"]
    assert second.split()[:4] == ["4", "req/s", "0", "1"]


def test_numbers_have_three_significant_digits() -> None:
    assert [number(value) for value in (0.01234, 5.678, 56.78, 567.8, 56789.0)] == [
        *("0.0123", "5.68", "56.8", "568", "56,789")
    ]

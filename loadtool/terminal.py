"""Tables of results for the terminal."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.loadtool.path_summary import PathSummary
from baton.loadtool.summary import Distribution, RunSummary

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def show_run(summary: RunSummary, console: Console) -> None:
    """Print one run."""
    console.print(Text(f"\n{summary.label}", "bold"), _times(summary), sep="\n")
    for line in lines_of(summary):
        console.print(Text(line), soft_wrap=True)
    for kind, failure in summary.failures.items():
        console.print(Text(f"{failure.count} x {kind}: {failure.example}", "red"), soft_wrap=True)
    for warning in summary.warnings:
        console.print(Text(f"warning: {warning}", "yellow"), soft_wrap=True)


def show_sweep(summaries: Sequence[RunSummary], console: Console) -> None:
    """Print a comparison of the runs."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("load", no_wrap=True)
    names = ("done", "failed", "req/s", "output tok/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "in flight", "good")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for each in summaries:
        table.add_row(
            each.label,
            str(each.num_completed),
            str(each.num_rejected + each.num_failed),
            number(each.requests_per_s),
            number(each.output_tokens_per_s),
            *_ends(each.ttft_ms),
            *_ends(each.tpot_ms),
            number(each.mean_concurrency),
            f"{each.goodput.share:.0%}" if each.goodput is not None else "",
        )
    console.print(Text(), table)


def lines_of(summary: RunSummary) -> list[str]:
    """Return one line for each statistic that is not a distribution."""
    sent = f" (sent at {number(summary.offered_per_s)})" if summary.offered_per_s is not None else ""
    late = f", late by p99 {number(summary.lag_ms.p99)} ms" if summary.lag_ms is not None else ""
    lines = [
        f"requests  {summary.num_completed} answered, {summary.num_rejected} rejected (429), "
        f"{summary.num_failed} failed in {summary.duration_s:.1f} s",
        f"rate      {number(summary.requests_per_s)} req/s{sent}, "
        f"{number(summary.input_tokens_per_s)} input and {number(summary.output_tokens_per_s)} output tok/s",
        f"in flight {number(summary.mean_concurrency)} on average, {summary.max_concurrency} at most; "
        f"client busy {summary.client_busy_share:.0%} of a core{late}",
    ]
    if summary.goodput is not None:
        good = summary.goodput
        lines.append(f"goodput   {number(good.per_s)} req/s, {good.share:.1%} within {good.slo}")
    if summary.num_cached_tokens is not None and summary.num_input_tokens:
        share = summary.num_cached_tokens / summary.num_input_tokens
        lines.append(f"cached    {share:.1%} of {summary.num_input_tokens:,} input tokens")
    if summary.paths is not None:
        lines.append(f"path      {_paths(summary.paths)}")
    return lines


def _paths(paths: PathSummary) -> str:
    over = ", ".join(f"{count} over {name}" for name, count in paths.by_transport.items())
    return (
        f"{paths.num_remote} prefilled elsewhere{f' ({over})' if over else ''}, {paths.num_local} locally; "
        f"{paths.num_handed_over_tokens:,} tokens handed over"
    )


def number(value: float) -> str:
    """Format with at least three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _times(summary: RunSummary) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("ms", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    rows = (("TTFT", summary.ttft_ms), ("TPOT", summary.tpot_ms), ("ITL", summary.itl_ms), ("E2E", summary.e2e_ms))
    for name, times in rows:
        if times is not None:
            table.add_row(name, *(number(getattr(times, column)) for column in COLUMNS))
    return table if table.row_count else Group(Text("no request completed", "red"))


def _ends(times: Distribution | None) -> tuple[str, str]:
    return (number(times.p50), number(times.p99)) if times is not None else ("", "")

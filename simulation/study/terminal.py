"""A comparison as a table in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.loadtool.terminal import number
from baton.simulation.study.comparison import Comparison
from baton.simulation.study.tuning import RANGES, varied
from baton.simulation.twin.outcome import Outcome

COLUMNS = ("good", "good req/s", "TTFT p50", "p90", "p99 ms", "TPOT p50", "p90", "p99 ms", "cached", "handed over",
           "GPU-hours", "good / GPU-hour")  # fmt: skip
MAX_SIZES = 24


def show(comparison: Comparison, console: Console) -> None:
    """Print a row for each run, and the sizes of the pools over time."""
    slo = comparison.slo
    console.print(
        Text(
            f"{comparison.trace}: {comparison.num_requests:,} requests in {comparison.colocated.seconds:,.0f} s, "
            f"{comparison.num_gpus} GPUs, good within TTFT {slo.ttft_s:g} s and TPOT {slo.tpot_s:g} s"
        ),
        Text(comparison.machine),
        sep="\n",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("deployment", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for outcome in comparison.outcomes:
        table.add_row(comparison.label(outcome), *cells(outcome, comparison))
    console.print(Text(), table)
    for outcome in comparison.outcomes:
        for line in notes_of(outcome):
            console.print(Text(line), soft_wrap=True)
    if comparison.tuned:
        console.print(Text("\nbest settings of the autoscaler among those tried:"), _tuned_table(comparison))
    console.print(Text(comparison.speed))


def _tuned_table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("good", "GPU-hours", *RANGES):
        table.add_column(column, justify="right", no_wrap=True)
    for outcome in comparison.tuned:
        assert outcome.plan.scaling is not None
        good = outcome.num_good(comparison.slo) / len(outcome.records)
        settings = map(number, varied(outcome.plan.scaling).values())
        table.add_row(f"{good:.1%}", f"{outcome.gpu_hours:.3g}", *settings)
    return table


def cells(outcome: Outcome, comparison: Comparison) -> list[str]:
    """Return a run's cells in the order of `COLUMNS`."""
    num_good = outcome.num_good(comparison.slo)
    times: list[str] = []
    for found in (outcome.ttft_ms, outcome.tpot_ms):
        times += [number(found.p50), number(found.p90), number(found.p99)] if found is not None else ["", "", ""]
    return [
        f"{num_good / len(outcome.records):.1%}",
        number(outcome.goodput(comparison.slo)),
        *times,
        f"{outcome.cached_share:.0%}",
        f"{outcome.remote_share:.0%}",
        f"{outcome.gpu_hours:.3g}",
        number(num_good / outcome.gpu_hours) if outcome.gpu_hours else "",
    ]


def notes_of(outcome: Outcome) -> list[str]:
    """Return notes on refusals, preemptions and changes of sizes."""
    lines: list[str] = []
    num_refused = len(outcome.records) - len(outcome.answered)
    if num_refused:
        example = next(record.refusal for record in outcome.records if record.refusal is not None)
        lines.append(f"{outcome.plan.label}: {num_refused} requests were refused, as in: {example}")
    if outcome.num_preemptions:
        lines.append(f"{outcome.plan.label}: {outcome.num_preemptions} preemptions")
    if len(outcome.sizes) > 1:
        lines.append(f"{outcome.plan.label}: " + ", ".join(_sizes(outcome)))
    return lines


def _sizes(outcome: Outcome) -> list[str]:
    """Return the ready prefill and decode replicas over time; the middle of a long history is left out."""
    lines: list[str] = []
    last = None
    for sizes in outcome.sizes:
        if sizes.ready != last:
            lines.append(f"{sizes.ready.prefill}+{sizes.ready.decode} from {sizes.since_s:.0f} s")
        last = sizes.ready
    if len(lines) > MAX_SIZES:
        half = MAX_SIZES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} more ...", *lines[-half:]]
    return lines

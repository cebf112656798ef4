"""Table of the engine comparison."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.engines.cells import NUM_OUTPUT_TOKENS, Cell
from benchmarks.engines.contestants import OURS
from benchmarks.engines.floors import Floor
from benchmarks.engines.samples import Samples, agreement
from benchmarks.machine import MachineLimits
from benchmarks.report import Report

COLUMNS = (
    "series", "prompt", "clients", "engine", "TTFT p50 ms", "TPOT p50 ms", "output tok/s", "spread", "prefill tok/s",
    "peak MB", "of the best peer", "of the floor", "first token same", "prefix same",
)  # fmt: skip
FLOOR = "(floor)"


@dataclass(frozen=True, slots=True)
class CellFloor:
    """Lower bound of the times in a cell."""

    ttft_s: float  # median, with prompts prefilled one after the other
    tpot_s: float
    tokens_per_s: float
    prefill_tokens_per_s: float

    @classmethod
    def of(cls, floor: Floor, cell: Cell, limits: Mapping[str, MachineLimits]) -> "CellFloor":
        """Compute the bound. `limits` are by weight dtype, because the GEMM rate differs."""
        series, limit = cell.series, limits[cell.series.weights]
        num_shared = series.num_shared
        shared_s = floor.prefill_s(limit, num_shared) if num_shared else 0.0
        prompt_s = floor.prefill_s(limit, cell.prompt_len - num_shared, num_shared)
        context = cell.prompt_len + NUM_OUTPUT_TOKENS / 2
        step_s = floor.decode_s(limit, cell.concurrency, context, series.weights, series.kv_cache)
        num_steps = cell.num_requests / cell.concurrency * (NUM_OUTPUT_TOKENS - 1)
        seconds = shared_s + cell.num_requests * prompt_s + num_steps * step_s
        return cls(
            ttft_s=prompt_s * (cell.concurrency + 1) / 2,
            tpot_s=step_s,
            tokens_per_s=cell.num_requests * NUM_OUTPUT_TOKENS / seconds,
            prefill_tokens_per_s=cell.prompt_len / prompt_s,
        )


def new_report(limits: Mapping[str, MachineLimits]) -> Report:
    """Return an empty table with its notes."""
    report = Report(f"Engines, {NUM_OUTPUT_TOKENS} output tokens", COLUMNS)
    for weights, limit in limits.items():
        report.notes.append(
            f"limits in {weights}: {limit.read_bytes_per_s / 1e9:.1f} GB/s read, "
            f"{limit.gemm_flop_per_s / 1e9:,.0f} GFLOP/s"
        )
    return report


def add_rows(report: Report, cell: Cell, floor: CellFloor, samples: Mapping[str, Samples]) -> None:
    """Add a row for the lower bound, and one for each engine with samples."""
    place = (cell.series.name, cell.prompt_len, cell.concurrency)
    report.add(
        *place, FLOOR, 1e3 * floor.ttft_s, 1e3 * floor.tpot_s, floor.tokens_per_s, "", floor.prefill_tokens_per_s,
        "", "", 1.0, "", "",
    )  # fmt: skip
    best_peer = max((each.tokens_per_s for name, each in samples.items() if name != OURS), default=None)
    ours = samples[OURS].token_ids() if OURS in samples else {}
    for name, each in samples.items():
        same = agreement(ours, each.token_ids()) if name != OURS else None
        report.add(
            *place, name, each.ttft_ms, each.tpot_ms, each.tokens_per_s, each.spread, each.prefill_tokens_per_s,
            round(each.peak_bytes / 1e6),
            each.tokens_per_s / best_peer if best_peer is not None else "",
            each.tokens_per_s / floor.tokens_per_s,
            same.first_token if same is not None else "",
            same.prefix if same is not None else "",
        )  # fmt: skip

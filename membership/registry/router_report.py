"""A router's report about its traffic and workers, for the autoscaler."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import ceil, log

import orjson
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from baton.settings.names import Role

GROWTH = 1.1
LEAST_S, MOST_S = 1e-6, 1e5  # clamp for times, which bounds the number of bins to 267
LOG_GROWTH = log(GROWTH)


def bin_of(time_s: float) -> int:
    """Return the bin of a time: bin `number` covers `GROWTH ** (number - 1)`, exclusive, to `GROWTH ** number`."""
    return ceil(log(min(max(time_s, LEAST_S), MOST_S)) / LOG_GROWTH)


def quantile_of_bins(counts: Mapping[int, int], quantile: float) -> float:
    """Return the quantile of the times at this share; 0 if there are none."""
    rank = ceil(quantile * sum(counts.values()))
    passed = 0
    for number in sorted(counts):
        passed += counts[number]
        if passed >= rank > 0:
            return float(2 * GROWTH**number / (1 + GROWTH))  # at equal relative distance from both ends of the bin
    return 0.0


@dataclass(frozen=True, slots=True)
class SampleSums:
    """Number, sum and sum of squares of samples."""

    num: int = 0
    total: FiniteFloat = 0.0
    squares: FiniteFloat = 0.0

    def __add__(self, other: "SampleSums") -> "SampleSums":
        return SampleSums(self.num + other.num, self.total + other.total, self.squares + other.squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """Traffic within the last `window_s`, counted in completions: a request with `n` of 3 counts as three."""

    window_s: FiniteFloat
    num_requests: int  # on arrival, refused ones included
    gaps_s: SampleSums = field(default_factory=SampleSums)  # between arrivals
    prompt_tokens: SampleSums = field(default_factory=SampleSums)
    uncached_tokens: SampleSums = field(default_factory=SampleSums)  # prompt tokens that a worker had to compute
    remote_tokens: SampleSums | None = None  # the same, of prompts sent to a prefill worker; None: not counted
    output_tokens: SampleSums = field(default_factory=SampleSums)  # of completions that finished
    asked_tokens: SampleSums = field(default_factory=SampleSums)  # max_tokens of arrivals
    num_generated_tokens: int | None = None  # output tokens, of running completions too; None: not counted
    num_waiting: int = 0  # in the router's queue now
    oldest_wait_s: FiniteFloat = 0.0  # of the waiting completions


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker that the router is connected to. A rate of 0 is unknown."""

    worker_id: str
    incarnation: str
    role: Role
    draining: bool
    ready_for_s: FiniteFloat  # since this router reached it
    num_running: int
    num_waiting: int  # admitted, not in the batch; at a decode worker including prompts that a prefill worker computes
    num_queued_tokens: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_tokens_per_s: FiniteFloat
    decode_step_s: FiniteFloat
    decode_sequence_s: FiniteFloat
    latency: Mapping[int, int] = field(default_factory=dict)  # counts by bin (see `latency_sketch`): TTFT of what
    # a prefill worker computed, TPOT of what another decoded; as this router saw it in the last window


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReport:
    """Report of one router at one time."""

    router_id: str
    model: str
    time_s: FiniteFloat  # Unix time; for a worker the latest report counts
    traffic: TrafficReport
    workers: tuple[WorkerReport, ...] = ()


def encode_report(report: RouterReport) -> str:
    """Return a report as JSON."""
    return orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS).decode()


def decode_report(text: str) -> RouterReport:
    """Return the report in a JSON text, without fields of later versions. Raises ValueError if it is not a report."""
    try:
        return _adapter().validate_json(text.encode(errors="surrogateescape"))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{text[:100]!r} is no report: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def _adapter() -> TypeAdapter[RouterReport]:
    """Return the adapter, made on first use: routers never need it."""
    return TypeAdapter(RouterReport)

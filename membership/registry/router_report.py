"""A router's report about its traffic and workers, for the autoscaler.

Redis may hold reports that no router wrote, so every field has bounds. A report with one value out of bounds is refused
whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil, log
from typing import Annotated

import orjson
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from baton.settings.names import MAX_NAME_CHARS, Role

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


MIN_WINDOW_S = 1.0  # a router that has just started would otherwise report a huge rate
MAX_WINDOW_S = 86_400.0
MAX_COUNT = 10**7  # of requests, sequences or blocks at one process
MAX_SAMPLES = 10**9  # in a window
MAX_TOKENS = 10**12
MAX_LENGTH = 1 << 32  # tokens of one prompt or output
MAX_BLOCK_SIZE = 1 << 16  # tokens
MAX_S = 1e10  # of any time, Unix time included
MAX_SUM = 1e24  # of samples or their squares
MIN_RATE, MIN_STEP_S, MAX_MEASURED = 1e-6, 1e-9, 1e9  # of a worker's rates and step times that are known
MAX_MODEL_CHARS = 4096
MAX_ADDRESS_CHARS = 300  # a host name has up to 253
MAX_WORKERS = 10_000
MAX_SHOWN_CHARS = 100  # of a text in errors


def known(value: float, least: float) -> float:
    """Return a worker's rate or step time; 0, which is unknown, unless it is from `least` to MAX_MEASURED."""
    return value if least <= value <= MAX_MEASURED else 0.0


def _check_known(value: float, least: float) -> float:
    if value != known(value, least):
        raise ValueError(f"must be 0 or from {least} to {MAX_MEASURED}")
    return value


# Strict: booleans and texts are no numbers.
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
NumSamples = Annotated[int, Field(strict=True, ge=0, le=MAX_SAMPLES)]
NumTokens = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_S, allow_inf_nan=False)]
Sum = Annotated[float, Field(strict=True, ge=0, le=MAX_SUM, allow_inf_nan=False)]
Rate = Annotated[float, Field(strict=True), AfterValidator(partial(_check_known, least=MIN_RATE))]
StepSeconds = Annotated[float, Field(strict=True), AfterValidator(partial(_check_known, least=MIN_STEP_S))]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Bin = Annotated[int, Field(ge=bin_of(LEAST_S), le=bin_of(MOST_S))]


@dataclass(frozen=True, slots=True)
class SampleSums:
    """Number, sum and sum of squares of samples."""

    num: NumSamples = 0
    total: Sum = 0.0
    squares: Sum = 0.0

    def __add__(self, other: "SampleSums") -> "SampleSums":
        return SampleSums(self.num + other.num, self.total + other.total, self.squares + other.squares)


def _check_lengths(sums: SampleSums) -> SampleSums:
    """Refuse sums that no whole numbers from 0 to MAX_LENGTH have; their moments would be of any size."""
    if sums.total and not 1 <= sums.total <= sums.num * MAX_LENGTH:
        raise ValueError(f"{sums.num} lengths cannot have the sum {sums.total}")
    if not sums.total * (1 - 1e-9) <= sums.squares <= sums.total * MAX_LENGTH:
        raise ValueError(f"lengths with the sum {sums.total} cannot have squares with the sum {sums.squares}")
    return sums


Lengths = Annotated[SampleSums, AfterValidator(_check_lengths)]  # in tokens


WindowSeconds = Annotated[float, Field(strict=True, ge=MIN_WINDOW_S, le=MAX_WINDOW_S, allow_inf_nan=False)]
MAX_RECENT = 8


@dataclass(frozen=True, slots=True)
class ArrivalCount:
    """Arrivals of the last `window_s`."""

    window_s: WindowSeconds
    num_requests: NumSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """Traffic within the last `window_s`, counted in completions: a request with `n` of 3 counts as three."""

    window_s: WindowSeconds
    num_requests: NumSamples  # on arrival, refused ones included
    gaps_s: SampleSums = field(default_factory=SampleSums)  # between arrivals
    prompt_tokens: Lengths = field(default_factory=SampleSums)
    uncached_tokens: Lengths = field(default_factory=SampleSums)  # prompt tokens that a worker had to compute
    remote_tokens: Lengths | None = None  # the same, of prompts sent to a prefill worker; None: not counted
    output_tokens: Lengths = field(default_factory=SampleSums)  # of completions that finished
    asked_tokens: Lengths = field(default_factory=SampleSums)  # max_tokens of arrivals
    num_generated_tokens: NumTokens | None = None  # output tokens, of running completions too; None: not counted
    num_waiting: Count = 0  # in the router's queue now
    oldest_wait_s: Seconds = 0.0  # of the waiting completions
    # The last parts of the window, shortest first; none in the first seconds of a router.
    recent: Annotated[tuple[ArrivalCount, ...], Field(max_length=MAX_RECENT)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker that the router is connected to. A rate of 0 is unknown."""

    worker_id: Name
    incarnation: Name
    role: Role
    draining: Annotated[bool, Field(strict=True)]
    ready_for_s: Seconds  # since this router reached it
    num_running: Count
    num_waiting: Count  # admitted, not in the batch; at a decode worker with prompts that a prefill worker computes
    num_queued_tokens: NumTokens
    num_blocks: Count
    num_free_blocks: Count
    block_size: Annotated[int, Field(strict=True, ge=0, le=MAX_BLOCK_SIZE)]
    max_num_seqs: Count
    max_num_batched_tokens: NumTokens
    prefill_tokens_per_s: Rate
    decode_step_s: StepSeconds
    decode_sequence_s: StepSeconds
    application: Annotated[str, Field(max_length=MAX_NAME_CHARS)] = ""  # application that placed it; "": none
    initial_role: Role | None = None  # with which its process was started; None: not reported
    address: Annotated[str, Field(max_length=MAX_ADDRESS_CHARS)] = ""  # host:port; "": not reported
    # Counts by bin (see `bin_of`): TTFT of what a prefill worker computed, TPOT of what another decoded; as this router
    # saw it in the last window.
    latency: Mapping[Bin, NumSamples] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReport:
    """Report of one router at one time."""

    router_id: Name
    model: Annotated[str, Field(max_length=MAX_MODEL_CHARS)]
    time_s: Seconds  # Unix time; for a worker the latest report counts
    traffic: TrafficReport
    workers: Annotated[tuple[WorkerReport, ...], Field(max_length=MAX_WORKERS)] = ()


def encode_report(report: RouterReport) -> str:
    """Return a report as JSON."""
    return orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS).decode()


def decode_report(text: str) -> RouterReport:
    """Return the report in a JSON text, without fields of later versions.

    Raises ValueError if it is not a report, or a value is out of its bounds.
    """
    try:
        return _adapter().validate_json(text.encode(errors="surrogateescape"))
    except ValidationError as error:
        first = error.errors()[0]
        field_path = ".".join(map(str, first["loc"]))[:MAX_SHOWN_CHARS]
        raise ValueError(f"{text[:MAX_SHOWN_CHARS]!r} is no report: {field_path}: {first['msg']}") from error


@cache
def _adapter() -> TypeAdapter[RouterReport]:
    """Return the adapter, made on first use: routers never need it."""
    return TypeAdapter(RouterReport)

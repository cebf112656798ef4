"""What a router tells of its traffic and its workers, for whoever decides how many workers there should be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import ceil, log

import orjson
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from baton.settings.worker_config import Role

GROWTH = 1.1
LEAST_S, MOST_S = 1e-6, 1e5  # times beyond are taken for these: so there are 267 bins at most
LOG_GROWTH = log(GROWTH)


def bin_of(time_s: float) -> int:
    """The number of the bin that holds times above `GROWTH ** (number - 1)`, up to `GROWTH ** number`."""
    return ceil(log(min(max(time_s, LEAST_S), MOST_S)) / LOG_GROWTH)


def quantile_of_bins(counts: Mapping[int, int], quantile: float) -> float:
    """The time that this share of the times is within; 0 if there are none."""
    rank = ceil(quantile * sum(counts.values()))
    passed = 0
    for number in sorted(counts):
        passed += counts[number]
        if passed >= rank > 0:
            return float(2 * GROWTH**number / (1 + GROWTH))  # as far from either end of the bin, in proportion
    return 0.0


@dataclass(frozen=True, slots=True)
class SampleSums:
    """Of samples: their number, their sum and that of their squares."""

    num: int = 0
    total: FiniteFloat = 0.0
    squares: FiniteFloat = 0.0

    def __add__(self, other: "SampleSums") -> "SampleSums":
        return SampleSums(self.num + other.num, self.total + other.total, self.squares + other.squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """What came to the router within the last `window_s`, counted in choices: a request with `n` of 3 is three."""

    window_s: FiniteFloat
    num_requests: int  # as they came, before they wait: refused ones too
    gaps_s: SampleSums = field(default_factory=SampleSums)  # between them
    prompt_tokens: SampleSums = field(default_factory=SampleSums)
    uncached_tokens: SampleSums = field(default_factory=SampleSums)  # of prompts, that some worker had to compute
    remote_tokens: SampleSums | None = None  # the same of prompts that went to a prefill worker; None: not counted
    output_tokens: SampleSums = field(default_factory=SampleSums)  # of those that ended
    asked_tokens: SampleSums = field(default_factory=SampleSums)  # the most output that those that came may have
    num_generated_tokens: int | None = None  # of output, of those that run too; None: not counted
    num_waiting: int = 0  # in the router's queue now
    oldest_wait_s: FiniteFloat = 0.0  # of them


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker that the router is connected to; 0 in a rate: not known yet."""

    worker_id: str
    incarnation: str
    role: Role
    draining: bool
    ready_for_s: FiniteFloat  # since this router reached it
    num_running: int
    num_waiting: int  # admitted and not in the batch; at a decode worker those that a prefill worker computes too
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
    """One router's, at one moment."""

    router_id: str
    model: str
    time_s: FiniteFloat  # Unix time; the latest knows best how a worker is
    traffic: TrafficReport
    workers: tuple[WorkerReport, ...] = ()


def encode_report(report: RouterReport) -> str:
    """A report as JSON."""
    return orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS).decode()


def decode_report(text: str) -> RouterReport:
    """The report of a JSON text. Raises ValueError if it is none; what a later version added is left out."""
    try:
        return _adapter().validate_json(text.encode(errors="surrogateescape"))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{text[:100]!r} is no report: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def _adapter() -> TypeAdapter[RouterReport]:
    """Made when it is needed, which is not in a router."""
    return TypeAdapter(RouterReport)

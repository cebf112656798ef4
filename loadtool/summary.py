"""Summary statistics of a run."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from baton.loadtool.concurrency import concurrency_of
from baton.loadtool.dispatch import LoadRun
from baton.loadtool.path_summary import PathSummary, summarise_paths
from baton.loadtool.slo import Slo


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics in milliseconds; percentiles by linear interpolation."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def distribution(values_s: Iterable[float]) -> Distribution | None:
    """Return the statistics of values in seconds; None if there are none."""
    values = np.fromiter(values_s, float) * 1000
    if not len(values):
        return None
    low, p50, p90, p95, p99, high = np.percentile(values, (0, 50, 90, 95, 99, 100)).tolist()
    return Distribution(len(values), float(values.mean()), float(values.std()), low, p50, p90, p95, p99, high)


REJECTED = 429
LATE_MS = 20.0  # p99 of the lag above which the client did not keep the send times
BUSY_SHARE = 0.9  # of a core; above this the client may be the bottleneck


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """Failed requests of one kind."""

    count: int
    example: str  # message of the first


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests within the SLOs."""

    slo: str
    num_good: int
    share: float  # of all requests sent
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a run. Latencies are of completed requests; rates refer to the time from first send to last end."""

    label: str
    num_sent: int
    num_completed: int
    num_rejected: int  # status 429
    num_failed: int  # other failures
    failures: Mapping[str, FailureSummary]  # by kind, including rejected requests
    duration_s: float
    offered_per_s: float | None  # send rate of an open loop
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    num_input_tokens: int
    num_output_tokens: int
    num_uncounted: int  # requests without a token count from the server: one token per event is assumed
    num_short: int  # requests with fewer output tokens than requested
    num_cached_tokens: int | None  # input tokens from a prefix cache; None: not reported
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    lag_ms: Distribution | None  # delay of sending, in an open loop
    mean_concurrency: float
    max_concurrency: int
    client_busy_share: float  # of one core
    goodput: Goodput | None
    paths: PathSummary | None
    is_whole: bool

    @property
    def warnings(self) -> list[str]:
        """Reasons to distrust the results."""
        found = []
        if self.lag_ms is not None and self.lag_ms.p99 > LATE_MS:
            found.append(f"requests were sent late (p99 {self.lag_ms.p99:.0f} ms): the client is too slow")
        if self.client_busy_share > BUSY_SHARE:
            found.append(f"the client used {self.client_busy_share:.0%} of a core: it may be the bottleneck")
        if self.num_uncounted:
            found.append(f"{self.num_uncounted} responses had no token count: one token per event was assumed")
        if self.num_short:
            found.append(f"{self.num_short} outputs were shorter than requested")
        if not self.is_whole:
            found.append("interrupted: unfinished requests are left out")
        return found


def summarise(run: LoadRun, slo: Slo | None) -> RunSummary:
    """Summarize a run."""
    records = run.records
    done = [record for record in records if record.failure is None]
    begin_s = min((record.sent_s for record in records), default=0.0)
    end_s = max((record.ended_s for record in records), default=0.0)
    duration_s = end_s - begin_s
    last_sent_s = max((record.sent_s for record in records), default=0.0)
    is_open = any(record.due_s is not None for record in records)
    num_rejected = sum(record.failure is not None and record.status == REJECTED for record in records)
    num_input_tokens = sum(record.num_prompt_tokens or 0 for record in done)
    num_output_tokens = sum(record.num_output_tokens for record in done)
    cached = [record.num_cached_tokens for record in done if record.num_cached_tokens is not None]
    concurrency = concurrency_of(records)
    return RunSummary(
        label=run.arrivals.label,
        num_sent=len(records),
        num_completed=len(done),
        num_rejected=num_rejected,
        num_failed=len(records) - len(done) - num_rejected,
        failures=_failures(run),
        duration_s=duration_s,
        offered_per_s=_rate(len(records), last_sent_s) if is_open else None,
        requests_per_s=_rate(len(done), duration_s),
        input_tokens_per_s=_rate(num_input_tokens, duration_s),
        output_tokens_per_s=_rate(num_output_tokens, duration_s),
        num_input_tokens=num_input_tokens,
        num_output_tokens=num_output_tokens,
        num_uncounted=sum(not record.is_counted for record in done),
        num_short=sum(record.is_counted and record.num_output_tokens < record.num_asked_tokens for record in done),
        num_cached_tokens=sum(cached) if cached else None,
        ttft_ms=distribution(record.ttft_s for record in done),
        tpot_ms=distribution(record.tpot_s for record in done if record.tpot_s is not None),
        itl_ms=distribution(gap for record in done for gap in np.diff(record.token_times_s).tolist()),
        e2e_ms=distribution(record.e2e_s for record in done),
        lag_ms=distribution(record.lag_s for record in records) if is_open else None,
        mean_concurrency=concurrency.mean(begin_s, end_s),
        max_concurrency=concurrency.highest,
        client_busy_share=_rate(run.client_cpu_s, run.elapsed_s),
        goodput=_goodput(run, slo, duration_s) if slo is not None else None,
        paths=summarise_paths(done),
        is_whole=run.is_whole,
    )


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _goodput(run: LoadRun, slo: Slo, duration_s: float) -> Goodput:
    num_good = sum(map(slo.is_good, run.records))
    return Goodput(str(slo), num_good, _rate(num_good, len(run.records)), _rate(num_good, duration_s))


def _failures(run: LoadRun) -> dict[str, FailureSummary]:
    failures = [record.failure for record in run.records if record.failure is not None]
    counts = Counter(failure.kind for failure in failures)
    examples = {failure.kind: failure.message for failure in reversed(failures)}
    return {kind: FailureSummary(count, examples[kind]) for kind, count in counts.most_common()}

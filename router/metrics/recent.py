"""Figures of a model's last minutes, for the console: rates, latencies, cache hits, plans, targets, errors."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from baton.membership.registry.router_report import bin_of, quantile_of_bins
from baton.router.policy.targets import Targets
from baton.rpc.status import message_of, status_of

SPAN_S = 5.0
NUM_SPANS = 60  # five minutes
TOTAL_SPANS = 12  # of the figures of the last minute
MAX_ERRORS = 20
MAX_ERROR_CHARS = 240


@dataclass(slots=True)
class SpanCounts:
    """Counts of one span of time."""

    num_ended: int = 0
    num_errors: int = 0  # failures of the server, and refusals for lack of room
    num_generated: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_judged: int = 0  # completions that ended with output
    num_on_target: int = 0  # those of them whose TTFT and TPOT met the targets
    plans: Counter[str] = field(default_factory=Counter)
    ttft: Counter[int] = field(default_factory=Counter)  # by bin
    tpot: Counter[int] = field(default_factory=Counter)

    def add(self, other: "SpanCounts") -> None:
        """Add the counts of another span."""
        self.num_ended += other.num_ended
        self.num_errors += other.num_errors
        self.num_generated += other.num_generated
        self.num_prompt_tokens += other.num_prompt_tokens
        self.num_cached_tokens += other.num_cached_tokens
        self.num_judged += other.num_judged
        self.num_on_target += other.num_on_target
        self.plans.update(other.plans)
        self.ttft.update(other.ttft)
        self.tpot.update(other.tpot)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some seconds. None: there was nothing to measure."""

    completions_per_s: float = 0.0
    tokens_per_s: float = 0.0
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p95_s: float | None = None
    hit_rate: float | None = None  # share of prompt tokens that no worker had to compute
    local: int = 0  # plans by which the decode worker computes the prompt
    remote: int = 0  # the others
    on_target: float | None = None  # share of the completions that met both targets
    errors: int = 0


@dataclass(frozen=True, slots=True)
class RecentError:
    """Requests in a row that failed or were refused for the same reason."""

    time_s: float  # Unix time of the last one
    status: int  # of HTTP
    request_id: str  # of the last one
    text: str
    num: int = 1


class RecentFigures:
    """Counts of the last `NUM_SPANS` spans. Counting costs some microseconds for each completion."""

    def __init__(self, targets: Targets | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`targets`: None: none are set, and no completion is judged."""
        self.targets = targets
        self.errors: deque[RecentError] = deque(maxlen=MAX_ERRORS)
        self._clock = clock
        self._began_s = clock()
        self._spans: dict[int, SpanCounts] = {}  # by number, ascending
        self._ended: dict[int, Figures] = {}  # figures of ended spans, computed when first read
        self._current, self._number, self._ends_s = SpanCounts(), 0, 0.0  # the latest span

    def generated(self, num_tokens: int) -> None:
        """Count tokens."""
        self._span().num_generated += num_tokens

    def planned(self, kind: str) -> None:
        """Count a plan of this kind: a completion that is routed, for the first time or again."""
        self._span().plans["remote" if kind.startswith("remote") else "local"] += 1

    def prompt_done(self, num_tokens: int, num_cached_tokens: int) -> None:
        """Count the tokens of a prompt that was computed."""
        span = self._span()
        span.num_prompt_tokens += num_tokens
        span.num_cached_tokens += num_cached_tokens

    def first_token(self, waited_s: float) -> None:
        """Record a TTFT."""
        self._span().ttft[bin_of(waited_s)] += 1

    def ended(self, ttft_s: float | None, tpot_s: float | None, has_failed: bool = False) -> None:
        """Count a completion that ended. `tpot_s`: None for fewer than two tokens. A failure misses the targets."""
        span = self._span()
        span.num_ended += 1
        if tpot_s is not None:
            span.tpot[bin_of(tpot_s)] += 1
        if self.targets is not None and ttft_s is not None:
            span.num_judged += 1
            is_quick = ttft_s <= self.targets.ttft_s and (tpot_s or 0.0) <= self.targets.tpot_s
            span.num_on_target += is_quick and not has_failed

    def failed(self, request_id: str, error: Exception) -> None:
        """Record a request that failed. Errors of clients are listed, and not counted."""
        status = status_of(error).http
        text = message_of(error) or type(error).__name__
        self._note(status, request_id, text, is_counted=status >= 500 or status == 429)

    def refused(self, reason: str, status: int) -> None:
        """Record a request that was refused, or given up while it waited."""
        self._note(status, "", f"refused by the router's queue: {reason}", is_counted=True)

    def series(self) -> list[Figures]:
        """Return the figures of the spans that have ended, the oldest first; before the first one has, those so far.

        The current span would look like a fall to zero when it has just begun.
        """
        counts = self._span()
        current = self._number
        numbers = range(max(int(self._began_s // SPAN_S), current - NUM_SPANS), current)
        self._ended = {number: self._of_ended(number) for number in numbers}
        if self._ended:
            return list(self._ended.values())
        return [figures([counts], max(1.0, self._clock() - self._began_s))]

    def total(self) -> Figures:
        """Return the figures of the last minute."""
        self._span()
        first = self._number - TOTAL_SPANS + 1
        spans = [span for number, span in self._spans.items() if number >= first]
        return figures(spans, max(1.0, self._clock() - max(first * SPAN_S, self._began_s)))

    def _of_ended(self, number: int) -> Figures:
        known = self._ended.get(number)
        if known is not None:
            return known
        span = self._spans.get(number)
        return Figures() if span is None else figures([span], SPAN_S)

    def _note(self, status: int, request_id: str, text: str, is_counted: bool) -> None:
        if is_counted:
            self._span().num_errors += 1
        text, num = text[:MAX_ERROR_CHARS], 1
        last = self.errors[-1] if self.errors else None
        if last is not None and (last.status, last.text) == (status, text):
            num += self.errors.pop().num
        self.errors.append(RecentError(round(time.time(), 3), status, request_id, text, num))

    def _span(self) -> SpanCounts:
        """Return the current span. Called for each delta: mostly it only reads the clock."""
        now_s = self._clock()
        if now_s >= self._ends_s:
            number = int(now_s // SPAN_S)
            kept = {each: counts for each, counts in self._spans.items() if each >= number - NUM_SPANS}
            self._current, self._number, self._ends_s = SpanCounts(), number, (number + 1) * SPAN_S
            self._spans = {**kept, number: self._current}
        return self._current


def figures(spans: Iterable[SpanCounts], seconds: float) -> Figures:
    """Return the figures of spans that are this long together."""
    total = SpanCounts()
    for span in spans:
        total.add(span)
    return Figures(
        completions_per_s=round(total.num_ended / seconds, 2),
        tokens_per_s=round(total.num_generated / seconds, 1),
        ttft_p50_s=_quantile(total.ttft, 0.5),
        ttft_p95_s=_quantile(total.ttft, 0.95),
        tpot_p50_s=_quantile(total.tpot, 0.5),
        tpot_p95_s=_quantile(total.tpot, 0.95),
        hit_rate=_share(total.num_cached_tokens, total.num_prompt_tokens),
        local=total.plans["local"],
        remote=total.plans["remote"],
        on_target=_share(total.num_on_target, total.num_judged),
        errors=total.num_errors,
    )


def _quantile(counts: Counter[int], quantile: float) -> float | None:
    return round(quantile_of_bins(counts, quantile), 5) if counts else None


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None

"""Traffic of a router over sliding windows, for the autoscaler: arrivals, lengths, and latencies of each worker.

Counting costs some ten microseconds per request. The sums over a window are computed when they are read.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from baton.membership.registry.router_report import MIN_WINDOW_S, ArrivalCount, SampleSums, bin_of
from baton.router.policy.cluster import Plan, RoutedRequest


@dataclass(slots=True)
class Samples:
    """Count, sum and sum of squares of the samples so far."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count a sample."""
        self.num += 1
        self.total += value
        self.squares += value * value

    def remove(self, value: float) -> None:
        """Uncount a sample that was added."""
        self.num -= 1
        self.total -= value
        self.squares -= value * value

    def sums(self) -> SampleSums:
        """Return the sums as they are reported: after removals, rounding may leave them slightly negative."""
        return SampleSums(self.num, max(0.0, self.total), max(0.0, self.squares))


T = TypeVar("T")


class SlidingWindow(Generic[T]):
    """One counter for each of the last spans, the current one included."""

    def __init__(self, make: Callable[[], T], num_spans: int, span_s: float) -> None:
        """`make` returns an empty counter."""
        self._make = make
        self._span_s = span_s
        self._counters = [make() for _ in range(num_spans)]
        self._numbers: list[int | None] = [None] * num_spans  # number of each counter's span; None: unused

    def at(self, now_s: float) -> T:
        """Return the counter of the current span."""
        number = int(now_s // self._span_s)
        place = number % len(self._counters)
        if self._numbers[place] != number:
            self._counters[place] = self._make()
            self._numbers[place] = number
        return self._counters[place]

    def live(self, now_s: float, num_spans: int | None = None) -> Iterator[T]:
        """Yield the counters that are in use, of the last `num_spans` or of the whole window."""
        first = self._first(now_s) if num_spans is None else int(now_s // self._span_s) - num_spans + 1
        for counter, number in zip(self._counters, self._numbers, strict=True):
            if number is not None and number >= first:
                yield counter

    def begins_s(self, now_s: float) -> float:
        """Return the time at which the window begins."""
        return self._first(now_s) * self._span_s

    def _first(self, now_s: float) -> int:
        return int(now_s // self._span_s) - len(self._counters) + 1


SPAN_S = 1.0
RECENT_SPANS = (10, 20, 40)  # numbers of spans whose arrivals are reported too, so that a jump is seen early


@dataclass(slots=True)
class _SpanCounts:
    """Completions that arrived in one span."""

    num: int = 0
    gaps_s: Samples = field(default_factory=Samples)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """The counts of one request, so that they can be removed."""

    span: _SpanCounts
    num_completions: int
    gap_s: float | None  # time since the previous request; None: not counted
    previous_s: float | None  # time of the previous request


class Arrivals:
    """Arrival counts of completions, taken before requests wait or are refused."""

    def __init__(self, window_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = window_s
        self._clock = clock
        self._began_s = clock()
        self._last_s: float | None = None
        self._last: Arrival | None = None
        self._window = SlidingWindow(_SpanCounts, window_s, SPAN_S)

    def add(self, num_completions: int) -> Arrival:
        """Count a request. Its completions arrive together, without gaps."""
        now_s = self._clock()
        span = self._window.at(now_s)
        span.num += num_completions
        span.gaps_s.num += num_completions - 1
        gap_s = None if self._last_s is None else now_s - self._last_s
        if gap_s is not None and gap_s >= self._longest_s:  # the previous request has left the window
            gap_s = None
        if gap_s is not None:
            span.gaps_s.add(gap_s)
        arrival = self._last = Arrival(span, num_completions, gap_s, self._last_s)
        self._last_s = now_s
        return arrival

    def remove(self, arrival: Arrival) -> None:
        """Uncount a request that turned out to be invalid: it is no load.

        If other requests have arrived since, the gap after it remains too short.
        """
        span = arrival.span
        span.num -= arrival.num_completions
        span.gaps_s.num -= arrival.num_completions - 1
        if arrival.gap_s is not None:
            span.gaps_s.remove(arrival.gap_s)
        if self._last is arrival:
            self._last_s, self._last = arrival.previous_s, None

    @property
    def num_completions(self) -> int:
        """Completions that arrived within the window."""
        return sum(span.num for span in self._window.live(self._clock()))

    @property
    def recent(self) -> tuple[ArrivalCount, ...]:
        """Completions that arrived in the last parts of the window; without those that are longer than the window."""
        now_s, window_s = self._clock(), self.window_s
        counts = []
        for num_spans in RECENT_SPANS:
            part_s = now_s - (now_s // SPAN_S - num_spans + 1) * SPAN_S
            if part_s < window_s:
                counts.append(ArrivalCount(part_s, sum(span.num for span in self._window.live(now_s, num_spans))))
        return tuple(counts)

    @property
    def gaps_s(self) -> SampleSums:
        """Times between the arrivals, in seconds."""
        return sum((span.gaps_s.sums() for span in self._window.live(self._clock())), SampleSums())

    @property
    def window_s(self) -> float:
        """Length of the window; shorter after a start, at least 1 s."""
        now_s = self._clock()
        return max(MIN_WINDOW_S, now_s - max(self._began_s, self._window.begins_s(now_s)))


SPANS = 6  # per window, plus the current one; few, as there is a window per worker


class LatencyWindow:
    """Latency histogram over a sliding window: counts by bin."""

    def __init__(self, window_s: float) -> None:
        self._span_s = window_s / SPANS
        self._spans: deque[tuple[int, Counter[int]]] = deque()  # number and counts of each span, oldest first
        self._sum: dict[int, int] = {}

    def add(self, number: int, now_s: float) -> None:
        """Count a latency in the bin `number`."""
        span = int(now_s // self._span_s)
        if not self._spans or self._spans[-1][0] != span:
            self._drop_old(now_s)
            self._spans.append((span, Counter()))
        self._spans[-1][1][number] += 1
        self._sum[number] = self._sum.get(number, 0) + 1

    def counts(self, now_s: float) -> dict[int, int]:
        """Return the counts of the window by bin."""
        self._drop_old(now_s)
        return self._sum.copy()

    def _drop_old(self, now_s: float) -> None:
        first = int(now_s // self._span_s) - SPANS
        while self._spans and self._spans[0][0] < first:
            for number, count in self._spans.popleft()[1].items():
                self._sum[number] -= count
                if not self._sum[number]:
                    del self._sum[number]


@dataclass(slots=True)
class _Lengths:
    """Lengths of the completions of one span, in tokens."""

    prompt: Samples = field(default_factory=Samples)
    uncached: Samples = field(default_factory=Samples)
    remote: Samples = field(default_factory=Samples)
    output: Samples = field(default_factory=Samples)
    asked: Samples = field(default_factory=Samples)
    num_generated: int = 0


@dataclass(frozen=True, slots=True)
class LengthSums:
    """Lengths of the completions of the window, in tokens."""

    prompt: SampleSums
    uncached: SampleSums  # prompt tokens that some worker had to compute
    remote: SampleSums  # the same, of prompts that a prefill worker computed
    output: SampleSums  # of completions that ended
    asked: SampleSums  # maximum output of the completions
    num_generated: int  # output tokens of all completions, ended or not


class Traffic:
    """Traffic statistics over a sliding window."""

    def __init__(self, window_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lengths = SlidingWindow(_Lengths, window_s, SPAN_S)
        self._num_generated = 0  # tokens not yet added to a span
        self._latencies: dict[str, LatencyWindow] = {}  # by incarnation

    def routed(self, plan: Plan, request: RoutedRequest) -> None:
        """Record a completion that is sent to workers for the first time."""
        span = self._span()
        span.prompt.add(request.num_tokens)
        if request.num_final_tokens > request.num_tokens:
            span.asked.add(request.num_final_tokens - request.num_tokens)
        num_uncached = uncached_tokens(plan, request)
        span.uncached.add(num_uncached)
        if plan.prefill is not None:
            span.remote.add(num_uncached)

    def generated(self, num_tokens: int) -> None:
        """Count generated tokens. As this is called often, it reads no clock; the next other call assigns the span."""
        self._num_generated += num_tokens

    def ended(self, num_tokens: int) -> None:
        """Record the output length of a completion that ended."""
        self._span().output.add(num_tokens)

    def add_latency(self, incarnation: str, time_s: float) -> None:
        """Record a worker's TTFT (of a prefill worker) or TPOT (of a decode worker)."""
        now_s = self._clock()
        window = self._latencies.get(incarnation)
        if window is None:
            self._forget_old(now_s)
            window = self._latencies[incarnation] = LatencyWindow(self._window_s)
        window.add(bin_of(time_s), now_s)

    @property
    def lengths(self) -> LengthSums:
        """Lengths of the completions of the window."""
        self._span()
        spans = list(self._lengths.live(self._clock()))
        return LengthSums(
            prompt=sum((span.prompt.sums() for span in spans), SampleSums()),
            uncached=sum((span.uncached.sums() for span in spans), SampleSums()),
            remote=sum((span.remote.sums() for span in spans), SampleSums()),
            output=sum((span.output.sums() for span in spans), SampleSums()),
            asked=sum((span.asked.sums() for span in spans), SampleSums()),
            num_generated=sum(span.num_generated for span in spans),
        )

    def latency(self, incarnation: str) -> dict[int, int]:
        """Return a worker's latency counts by bin."""
        window = self._latencies.get(incarnation)
        return {} if window is None else window.counts(self._clock())

    def _span(self) -> _Lengths:
        """Return the current span, after adding the tokens of `generated`."""
        span = self._lengths.at(self._clock())
        span.num_generated += self._num_generated
        self._num_generated = 0
        return span

    def _forget_old(self, now_s: float) -> None:
        """Remove workers without a latency in the window."""
        self._latencies = {each: window for each, window in self._latencies.items() if window.counts(now_s)}


def uncached_tokens(plan: Plan, request: RoutedRequest) -> int:
    """Return the prompt tokens that a plan computes: those that are not cached, pulled or fetched from a store."""
    worker = plan.prefill or plan.decode
    if plan.prefix_source is not None:
        return min(request.missing_tokens(each) for each in (worker, plan.prefix_source))
    return request.missing_tokens(worker) - request.fetchable_tokens(worker)

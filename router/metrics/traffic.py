"""How long prompts and outputs were lately, and how soon each worker answered.

Counting costs a request some ten microseconds in all; whoever reads adds up the seconds.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.membership.registry.router_report import SampleSums, bin_of
from baton.router.admission.arrivals import Samples, SlidingWindow
from baton.router.policy.cluster import Plan, RoutedRequest

SPANS = 6  # within the window, and the present one; coarse: there are as many windows as workers


class LatencyWindow:
    """Owns the counts by bin."""

    def __init__(self, window_s: float) -> None:
        self._span_s = window_s / SPANS
        self._spans: deque[tuple[int, Counter[int]]] = deque()  # each with its number, in order
        self._sum: dict[int, int] = {}

    def add(self, number: int, now_s: float) -> None:
        """One more time in the bin of this number."""
        span = int(now_s // self._span_s)
        if not self._spans or self._spans[-1][0] != span:
            self._drop_old(now_s)
            self._spans.append((span, Counter()))
        self._spans[-1][1][number] += 1
        self._sum[number] = self._sum.get(number, 0) + 1

    def counts(self, now_s: float) -> dict[int, int]:
        """Those of the window."""
        self._drop_old(now_s)
        return self._sum.copy()

    def _drop_old(self, now_s: float) -> None:
        first = int(now_s // self._span_s) - SPANS
        while self._spans and self._spans[0][0] < first:
            for number, count in self._spans.popleft()[1].items():
                self._sum[number] -= count
                if not self._sum[number]:
                    del self._sum[number]


SPAN_S = 1.0


@dataclass(slots=True)
class _Lengths:
    """Of the choices of one span, in tokens."""

    prompt: Samples = field(default_factory=Samples)
    uncached: Samples = field(default_factory=Samples)
    remote: Samples = field(default_factory=Samples)
    output: Samples = field(default_factory=Samples)
    asked: Samples = field(default_factory=Samples)
    num_generated: int = 0


@dataclass(frozen=True, slots=True)
class LengthSums:
    """Of the choices of the window, in tokens."""

    prompt: SampleSums
    uncached: SampleSums  # what some worker had to compute of the prompts
    remote: SampleSums  # of these prompts, those that went to a prefill worker
    output: SampleSums  # of choices that ended
    asked: SampleSums  # the most output that these choices may have
    num_generated: int  # tokens of output, of whatever choice


class Traffic:
    """Owns what is measured of the choices on their way."""

    def __init__(self, window_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lengths = SlidingWindow(_Lengths, window_s, SPAN_S)
        self._num_generated = 0  # tokens that are in no span yet
        self._latencies: dict[str, LatencyWindow] = {}  # by incarnation

    def routed(self, plan: Plan, request: RoutedRequest) -> None:
        """A choice is sent to workers for the first time."""
        span = self._span()
        span.prompt.add(request.num_tokens)
        if request.num_final_tokens > request.num_tokens:
            span.asked.add(request.num_final_tokens - request.num_tokens)
        num_uncached = uncached_tokens(plan, request)
        span.uncached.add(num_uncached)
        if plan.prefill is not None:
            span.remote.add(num_uncached)

    def generated(self, num_tokens: int) -> None:
        """Tokens of a choice came from its worker. That is often: whatever comes next says when it was."""
        self._num_generated += num_tokens

    def ended(self, num_tokens: int) -> None:
        """A choice ended with so many tokens."""
        self._span().output.add(num_tokens)

    def took(self, incarnation: str, time_s: float) -> None:
        """A worker took so long for a first token, or for each further one."""
        now_s = self._clock()
        window = self._latencies.get(incarnation)
        if window is None:
            self._forget_old(now_s)
            window = self._latencies[incarnation] = LatencyWindow(self._window_s)
        window.add(bin_of(time_s), now_s)

    @property
    def lengths(self) -> LengthSums:
        """Those of the window."""
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
        """How often a worker took how long, by bin."""
        window = self._latencies.get(incarnation)
        return {} if window is None else window.counts(self._clock())

    def _span(self) -> _Lengths:
        """The present one, with the tokens that came lately."""
        span = self._lengths.at(self._clock())
        span.num_generated += self._num_generated
        self._num_generated = 0
        return span

    def _forget_old(self, now_s: float) -> None:
        """Workers come and go: of those that have done nothing for a while there is nothing to remember."""
        self._latencies = {each: window for each, window in self._latencies.items() if window.counts(now_s)}


def uncached_tokens(plan: Plan, request: RoutedRequest) -> int:
    """Tokens of the prompt that are computed for it, by whomever: neither cached there nor pulled."""
    who = plan.prefill or plan.decode
    return min(request.missing_tokens(each) for each in (who, plan.prefix_source) if each is not None)

"""The router's metrics, with vLLM's names and the prefix `baton:`."""

import time
from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from baton.router.metrics.adapter_series import AdapterSeries
from baton.router.metrics.counter import LoopCounter
from baton.router.metrics.histogram import LoopHistogram
from baton.router.metrics.live import LiveCompletion, LiveCompletions
from baton.router.metrics.phases import PhaseSeries
from baton.router.metrics.recent import RecentFigures
from baton.router.metrics.traffic import Traffic
from baton.router.parsing.base import CallEnd, CallStart, OutputPart
from baton.router.policy.cluster import Plan
from baton.router.policy.targets import Targets
from baton.router.tracing.request_trace import RequestTrace

PREFIX = "baton:"

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
    *(640, 2560),
)
TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(20, 40, 80),
)
REQUEST_BUCKETS_S = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
    7680,
)
COMPLETION_BUCKETS = (1, 2, 5, 10, 20)
LENGTH_BUCKETS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class RouterMetrics:
    """The router's series, the Prometheus registry of all series, the traffic statistics, and the console's figures."""

    def __init__(self, model_name: str, traffic_window_s: int, targets: Targets | None = None) -> None:
        """`targets`: by which completions are judged. Default: they are not."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each count
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self.traffic = Traffic(traffic_window_s)
        self.adapters = AdapterSeries(self.registry, model_name, PREFIX)
        self.recent = RecentFigures(targets)
        self.live = LiveCompletions()
        self._phases = PhaseSeries(self.registry, model_name, PREFIX, REQUEST_BUCKETS_S)
        self._prompt_tokens = self._count("prompt_tokens", "Prompt tokens of the requests served.")
        self._generation_tokens = self._count("generation_tokens", "Tokens generated.")
        self._prefix_cache_queries = self._count("prefix_cache_queries", "Prompt tokens looked up in prefix caches.")
        self._prefix_cache_hits = self._count("prefix_cache_hits", "Prompt tokens that no worker had to compute.")
        self.failovers = self._count("failovers", "Requests sent again to a worker.")
        self.hand_offs = self._count(
            "requests_handed_off", "Requests that a draining worker gave away and another worker continued."
        )
        self.requests_resumed = self._count_by(
            "how",
            "requests_resumed",
            "Requests that clients resumed: recalled from a worker, regenerated from the prompt, or failed.",
        )
        self._success = self._count_by("finished_reason", "request_success", "Completions that ended, by reason.")
        self._embedded_inputs = self._count("embedding_inputs", "Inputs of which embeddings were computed.")
        self._embeddings_s = self._histogram(
            "embedding_request_seconds", "Embedding request to response.", REQUEST_BUCKETS_S
        )
        self._tool_calls = self._count_by(
            "finished_reason", "tool_calls", "Calls of tools, by the reason for which their completions ended."
        )
        self._invalid_arguments = self._count(
            "tool_call_invalid_arguments", "Calls of tools whose arguments are no JSON object."
        )
        self._plans = self._count_by("plan", "requests_by_plan", "Requests routed, by plan.")
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Time between two tokens.", TOKEN_BUCKETS_S)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean time between two tokens of a request.", TOKEN_BUCKETS_S
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_BUCKETS_S)
        self._prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", LENGTH_BUCKETS)
        self._output_length = self._histogram("request_generation_tokens", "Tokens of a completion.", LENGTH_BUCKETS)
        self._max_tokens = self._histogram("request_params_max_tokens", "max_tokens of requests.", LENGTH_BUCKETS)
        self._num_completions = self._histogram("request_params_n", "Completions per prompt.", COMPLETION_BUCKETS)
        inflight = Gauge(f"{PREFIX}router_inflight", "Completions in flight.", ["model_name"], registry=self.registry)
        self.inflight = inflight.labels(model_name)

    def _count(self, name: str, text: str) -> LoopCounter:
        return LoopCounter(PREFIX + name, text, {"model_name": self.model_name}, self.registry)

    def _count_by(self, label: str, name: str, text: str) -> Callable[[str], Counter]:
        family = Counter(PREFIX + name, text, ["model_name", label], registry=self.registry)
        return cache(lambda value: family.labels(self.model_name, value))  # the values are few

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> LoopHistogram:
        return LoopHistogram(PREFIX + name, text, {"model_name": self.model_name}, buckets, self.registry)

    def request_started(self, max_tokens: int, num_completions: int) -> None:
        """Record the options of a prompt that is to be served."""
        self._max_tokens.observe(max_tokens)
        self._num_completions.observe(num_completions)

    def routed(self, live: LiveCompletion, plan: Plan) -> None:
        """Record that a completion is sent to workers, for the first time or again."""
        self.live.routed(live, plan)
        self._phases.routed(live)

    def dispatch_ended(self, live: LiveCompletion) -> None:
        """Record that a completion has ended, has failed, or was cancelled."""
        self.live.end(live)
        self._phases.ended(live)

    def planned(self, plan: str) -> None:
        """Count a completion that was routed by this kind of plan."""
        self._plans(plan).inc()
        self.recent.planned(plan)

    def prompt_done(self, num_tokens: int, num_cached_tokens: int, adapter: str = "") -> None:
        """Record a prompt that was computed. adapter: its name; empty: none."""
        if adapter:
            self.adapters.prompt_done(adapter, num_tokens)
        self._prompt_tokens.inc(num_tokens)
        self._prefix_cache_queries.inc(num_tokens)
        self._prefix_cache_hits.inc(num_cached_tokens)
        self._prompt_length.observe(num_tokens)
        self.recent.prompt_done(num_tokens, num_cached_tokens)

    def input_embedded(self, num_tokens: int, num_cached_tokens: int) -> None:
        """Record an input of which an embedding was computed."""
        self._embedded_inputs.inc()
        self.prompt_done(num_tokens, num_cached_tokens)

    def embeddings_done(self, total_s: float) -> None:
        """Record a request of which all embeddings were computed."""
        self._embeddings_s.observe(total_s)

    def tokens_arrived(self, num_tokens: int, gap_s: float | None) -> None:
        """Record tokens of a completion; `gap_s`: time since the previous ones, None for the first."""
        self._generation_tokens.inc(num_tokens)
        self.recent.generated(num_tokens)
        if gap_s is not None:
            self._itl.observe(gap_s / num_tokens, num_tokens)

    def first_token(self, waited_s: float, trace_id: str | None = None) -> None:
        """Record the TTFT of a completion."""
        self._ttft.observe(waited_s, trace_id=trace_id)
        self.recent.first_token(waited_s)

    def completion_ended(
        self,
        reason: str,
        num_tokens: int,
        total_s: float,
        decode_s: float,
        ttft_s: float | None = None,
        trace_id: str | None = None,
    ) -> None:
        """Record the end of a completion; `decode_s`: time from its first token to its last.

        `ttft_s`: None: it has no token.
        """
        tpot_s = decode_s / (num_tokens - 1) if num_tokens > 1 else None
        self.recent.ended(ttft_s, tpot_s, reason == "error")
        self._success(reason).inc()
        self._output_length.observe(num_tokens)
        if num_tokens:
            self.traffic.ended(num_tokens)
        self._e2e.observe(total_s, trace_id=trace_id)
        if tpot_s is not None:
            self._tpot.observe(tpot_s)

    def calls_ended(self, reason: str, num_calls: int, num_invalid: int) -> None:
        """Record the calls of a completion; `num_invalid`: of them with arguments that are no JSON object."""
        if num_calls:
            self._tool_calls(reason).inc(num_calls)
            self._invalid_arguments.inc(num_invalid)


class CompletionMeter:
    """Latencies of one completion, and its calls."""

    def __init__(
        self,
        metrics: RouterMetrics,
        started_s: float | None = None,
        adapter: str = "",
        trace: RequestTrace | None = None,
    ) -> None:
        """started_s: on the clock of `time.monotonic`; None: now. adapter: its name; empty: none.

        trace: of the request, for exemplars; None: none.
        """
        self._metrics = metrics
        self._adapter = adapter
        self._trace = trace
        self._trace_id = None if trace is None else trace.exemplar
        self._started_s = time.monotonic() if started_s is None else started_s
        self._first_s = self._last_s = 0.0
        self._num_tokens = 0
        self._num_calls = self._num_invalid = 0

    def parts(self, parts: Iterable[OutputPart]) -> None:
        """Count the calls among the parts of an output."""
        for part in parts:
            self._num_calls += isinstance(part, CallStart)
            self._num_invalid += isinstance(part, CallEnd) and not part.is_valid_json

    def tokens(self, num_tokens: int) -> None:
        """Record the arrival of tokens."""
        if not num_tokens:
            return
        now_s = time.monotonic()
        if self._num_tokens:
            self._metrics.tokens_arrived(num_tokens, now_s - self._last_s)
        else:
            self._first_s = now_s
            self._metrics.first_token(now_s - self._started_s, self._trace_id)
            self._metrics.tokens_arrived(num_tokens, None)
        self._num_tokens += num_tokens
        self._last_s = now_s

    def ended(self, reason: str) -> None:
        """Record the end of the completion. Calls of tools end it as the model's own end does, as in vLLM's metrics."""
        if self._trace is not None:
            self._trace.note_completion(reason, self._num_tokens, self._first_s)
        self._metrics.calls_ended(reason, self._num_calls, self._num_invalid)
        reason = "stop" if reason == "tool_calls" else reason
        now_s = time.monotonic()
        if self._adapter:
            self._metrics.adapters.completion_ended(self._adapter, reason, self._num_tokens)
        ttft_s = self._first_s - self._started_s if self._num_tokens else None
        total_s, decode_s = now_s - self._started_s, self._last_s - self._first_s
        self._metrics.completion_ended(reason, self._num_tokens, total_s, decode_s, ttft_s, self._trace_id)

"""The trace of one completion: its plans, and its attempts at decode workers."""

import time

from baton.protos.common_pb2 import ServedBy
from baton.protos.worker_pb2 import GenerateCommand, RequestDelta
from baton.router.policy.cluster import Plan, RoutedRequest
from baton.router.policy.policy import Comparison
from baton.router.tracing.request_trace import RequestTrace, WorkerTiming, reason_of
from baton.rpc.tracing.span import Attribute, Span, SpanKind


class CompletionTrace:
    """Records what the dispatcher does for one completion."""

    def __init__(self, trace: RequestTrace, index: int) -> None:
        self._trace = trace
        self._index = index
        self._planning_since_s = time.monotonic()
        self._attempt: Span | None = None  # the last one
        self._num_attempts = 0
        self._is_kept = True  # the last attempt is among the trace's spans
        self._has_token = False
        self._failure: tuple[str, str] | None = None  # class and text of the error of the last attempt

    def planned(self, plan: Plan, routed: RoutedRequest) -> None:
        """Record a plan. Its time counts from the start or the last failure, and includes waits for a worker."""
        if self._failure is not None:
            name, reason = self._failure
            said: dict[str, Attribute] = {"baton.completion": self._index, "error.type": name, "baton.reason": reason}
            self._trace.root.event("retry", said)
        span = self._trace.recorder.begin("plan", at_s=self._planning_since_s)
        computing = plan.prefill or plan.decode
        span.attributes |= {
            **_workers(plan),
            "baton.plan": plan.kind.value,
            "baton.plan_reason": str(plan.reason),
            "baton.prompt_tokens": routed.num_tokens,
            "baton.cached_tokens": routed.cached_tokens.get(computing.incarnation, 0),
        }
        if isinstance(plan.reason, Comparison):
            span.attributes["baton.predicted_cost_s"] = plan.reason.best.cost
            span.attributes["baton.predicted_ttft_s"] = plan.reason.best.price.ttft_s
        span.end()

    def sent(self, command: GenerateCommand, plan: Plan) -> None:
        """Begin an attempt, and put its context into its command. A repeated attempt links to the failed one."""
        failed, recorder = self._attempt, self._trace.recorder
        span = self._attempt = recorder.begin("attempt", kind=SpanKind.CLIENT)
        span.attributes |= {**_workers(plan), "baton.completion": self._index, "baton.attempt": self._num_attempts}
        if failed is not None:
            span.links.append(failed.context)
        self._num_attempts += 1
        self._is_kept = recorder.keeps(span)
        if self._is_kept:  # otherwise its worker's spans would have no parent
            command.traceparent, command.tracestate = span.context.traceparent, span.context.state

    def note(self, delta: RequestDelta) -> None:
        """Record a delta of the attempt."""
        span = self._attempt
        assert span is not None
        if delta.token_ids and not self._has_token:
            self._has_token = True
            span.event("first_token")
        if delta.HasField("served_by"):
            span.attributes |= _served(delta.served_by)
        if self._is_kept:
            self._trace.worker_timings += [WorkerTiming(span, timing) for timing in delta.timings]

    def closed(self) -> None:
        """End the attempt."""
        if self._attempt is not None:
            self._attempt.end()

    def failed(self, error: Exception) -> None:
        """Record why the attempt failed, or was not possible. The completion is sent again if a plan follows."""
        self._planning_since_s = time.monotonic()
        self._failure = type(error).__name__, reason_of(error)
        if self._attempt is not None:
            self._attempt.fail(*self._failure)


def _workers(plan: Plan) -> dict[str, Attribute]:
    names: dict[str, Attribute] = {"baton.decode_worker": plan.decode.worker_id}
    if plan.prefill is not None:
        names["baton.prefill_worker"] = plan.prefill.worker_id
    if plan.prefix_source is not None:
        names["baton.prefix_source"] = plan.prefix_source.worker_id
    return names


def _served(served_by: ServedBy) -> dict[str, Attribute]:
    """Return the attributes of a completion's workers, which replace those of the plan."""
    return {
        "baton.prefill_worker": served_by.prefill_worker,
        "baton.transport": served_by.kv_transport,
        "baton.decode_cached_tokens": served_by.decode_cached_tokens,
        "baton.prefill_cached_tokens": served_by.prefill_cached_tokens,
        "baton.handed_over_tokens": served_by.handed_over_tokens,
    }
